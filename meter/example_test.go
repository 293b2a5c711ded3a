package meter_test

import (
	"fmt"
	"log"
	"strings"

	"github.com/snug-ml/snug/meter"
)

// A run says what it holds and by whom; the meter says what the peak was, and who held it. The memory of the process, and
// of the device, comes from the system.
func Example() {
	m, err := meter.New(meter.Options{History: 1 << 12}) // 1<<12 events of the latest past, and all of the peak
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	m.Holder(meter.OnDevice, meter.Weights, "layers.0").Set(600)
	output := m.Holder(meter.OnDevice, meter.Activations, "layers.0")
	for step := range 3 {
		m.Step(step + 1)
		m.Enter(meter.Forward, "layers.0")
		output.Add(200)
		m.Enter(meter.Backward, "layers.0")
		output.Add(-200)
		if err := m.Sample(); err != nil {
			log.Fatal(err)
		}
	}
	peak, err := m.PeakHolders(meter.OnDevice)
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range peak.Holders {
		fmt.Println(h.Component, "of", h.Name, meter.FormatBytes(h.Bytes))
	}
	now, _ := m.Held()
	fmt.Println(peak.Phase, "of step", peak.Step, "takes", peak.Bytes, "bytes; now", now[meter.OnDevice].Total())
	// Output:
	// weights of layers.0 600 B
	// activations of layers.0 200 B
	// forward of step 3 takes 800 bytes; now 600
}

// A Monitor counts what a program tells it, warns before a limit is met, and keeps a
// timeline.
func ExampleMonitor() {
	m, err := meter.New(meter.Options{
		Limits:  [meter.Tiers]int64{meter.OnDevice: 1000},
		Warning: func(w meter.Warning) { fmt.Println(w) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	m.Add(meter.OnDevice, meter.Weights, 600)
	m.Add(meter.OnDevice, meter.Activations, 350)
	m.Add(meter.OnDevice, meter.Activations, -350)
	if err := m.Sample(); err != nil { // a line of the timeline, such as for each step
		log.Fatal(err)
	}
	fmt.Println(m.Peak(meter.OnDevice), m.Check())
	// Output:
	// device memory: 950 B of 1000 B, 95.0 %
	// 950 <nil>
}

// A monitor's figures for a server of metrics.
func ExampleMonitor_WritePrometheus() {
	m, err := meter.New(meter.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	m.Add(meter.OnDevice, meter.Weights, 600)
	m.Add(meter.OnDisk, meter.State, 1200)
	var text strings.Builder
	if err := m.WritePrometheus(&text); err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, "snug_memory_peak_bytes") {
			fmt.Print(line)
		}
	}
	// Output:
	// snug_memory_peak_bytes{tier="device"} 600
	// snug_memory_peak_bytes{tier="host"} 0
	// snug_memory_peak_bytes{tier="disk"} 1200
}

// Who holds what when a run takes the most: a history, from which WriteTrace and WritePeakSVG also make a trace for
// ui.perfetto.dev and a picture. Packages transformer and train tell a monitor all of this themselves.
func ExampleMonitor_WritePeak() {
	m, err := meter.New(meter.Options{History: 1 << 12})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	var outputs [3]*meter.Holder
	for i := range outputs {
		layer := fmt.Sprintf("layers.%d", i)
		m.Holder(meter.OnDevice, meter.Weights, layer).Set(1 << 20)
		outputs[i] = m.Holder(meter.OnDevice, meter.Activations, layer)
	}
	scratch := m.Holder(meter.OnDevice, meter.Activations, "layers.2, backward")
	m.Step(1)
	for i, output := range outputs {
		m.Enter(meter.Forward, fmt.Sprintf("layers.%d", i))
		output.Add(5000)
	}
	m.Enter(meter.Backward, "layers.2")
	scratch.Add(9000)
	scratch.Add(-9000)
	outputs[2].Set(0)
	p, err := m.PeakHolders(meter.OnDevice)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Bytes == m.Peak(meter.OnDevice), p.Step, p.Phase, p.Stage)
	var text strings.Builder
	if err := m.WritePeak(&text, meter.OnDevice, 10); err != nil {
		log.Fatal(err)
	}
	_, table, _ := strings.Cut(text.String(), "\n") // without the line that has the time
	fmt.Print(table)
	// Output:
	// true 1 backward layers.2
	//      component                    held by     bytes     share
	//        weights   layers.0–2 (3 × 1048576)   3145728    99.2 %
	//    activations      layers.0–2 (3 × 5000)     15000     0.5 %
	//    activations         layers.2, backward      9000     0.3 %
	//            sum                              3169728   100.0 %
}
