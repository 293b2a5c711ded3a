// Package meter counts what holds memory now: by component, by tier, by name and over time.
//
//	m, err := meter.New(meter.Options{History: 1 << 16})
//	model, err := transformer.Open(folder, transformer.Options{Monitor: m}) // they tell the Monitor what they hold
//	trainer, err := train.New(model, train.Options{Monitor: m})
//	...                                                      // steps
//	err = m.Check()                                          // whether a tier held more than its limit
//	err = m.WritePeak(os.Stdout, meter.OnDevice, 20)         // who held what at the peak, to the byte
//	err = m.WritePeakSVG(file, meter.OnDevice, "my run")     // a picture of it; WriteTrace: for ui.perfetto.dev
//	now, peak := meter.Resident()                            // memory of the process, by the system
//
// A [Monitor] is told: [Monitor.Add] counts bytes of a [Component] on a [Tier], a [Holder] those of a name such as a
// layer's, and [Pages] those of a store of pages. It asks the system for the memory of the process and of the device at
// each [Monitor.Sample]. The methods that a training loop calls allocate nothing.
//
// Package plan predicts the same figures. A user of this package does not link it.
package meter
