package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"text/tabwriter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

func devicesCommand() *command {
	return &command{
		name: "devices", summary: "the devices of this machine, and the presets of plan",
		help: `Lists the devices that snug.Open can open here, with their memory and free memory, and
the presets of snug plan -device, with the rates by which it predicts times. With -measure it measures
those of the processor, in a few seconds and 160 MB, and keeps them in the user's cache, where
snug plan -memory and snug tune find them: measure while nothing else runs. On ranks that a launcher
of MPI has started, rank 0 also measures the network between them, for snug plan -ranks.
`,
		flags: func() flagTable { return new(devicesFlags).table() },
		closing: `GPUs need a program that is built for them:

  go install -tags cuda github.com/snug-ml/snug/cmd/snug@latest     Linux and Windows, NVIDIA
  go install -tags hip github.com/snug-ml/snug/cmd/snug@latest      Linux, AMD
  go install -tags metal github.com/snug-ml/snug/cmd/snug@latest    macOS

  snug devices -measure
  mpiexec -n 2 snug devices
`,
		run: runDevices,
	}
}

// devicesFlags are the command line of devices.
type devicesFlags struct{ json, measure bool }

// table returns the flags, which write into f.
func (f *devicesFlags) table() flagTable {
	return flagTable{
		switchFlag("measure", &f.measure, "measure the processor, and keep the rates for snug plan -memory and snug tune"),
		jsonFlag(&f.json),
	}
}

// deviceReport is one device of this machine.
type deviceReport struct {
	Name  string `json:"name"`
	Note  string `json:"note,omitempty"`
	Total int64  `json:"total_bytes,omitempty"`
	Free  int64  `json:"free_bytes,omitempty"`
}

// presetReport is one preset.
type presetReport struct {
	Name      string  `json:"name"`
	Memory    int64   `json:"memory_bytes"`
	Usable    int64   `json:"usable_bytes"`
	Unified   bool    `json:"unified,omitempty"`
	F32       float64 `json:"f32_per_second"`
	F16       float64 `json:"f16_per_second"`
	Bandwidth float64 `json:"bytes_per_second"`
}

func runDevices(c *call) error {
	var f devicesFlags
	if _, err := c.parse(f.table(), 0, 0); err != nil {
		return leaveRanks(err)
	}
	names, broken := snug.Devices()
	var out struct {
		Devices   []deviceReport `json:"devices"`
		Presets   []presetReport `json:"presets"`
		Processor *measured      `json:"processor,omitempty"`
		Network   *networkReport `json:"network,omitempty"`
	}
	network, follows, err := measureRanks()
	if err != nil || follows {
		return err
	}
	out.Network = network
	if out.Processor, err = f.processor(); err != nil {
		return err
	}
	for _, name := range names {
		out.Devices = append(out.Devices, describe(name))
	}
	for _, d := range plan.Devices() {
		out.Presets = append(out.Presets, presetReport{d.Name, d.Memory, d.Memory - d.Reserved, d.Unified, d.F32, d.F16, d.Bandwidth})
	}
	if broken != nil {
		fmt.Fprintf(c.stderr, "snug: %s\n", oneLine(broken)) // the other devices are still listed
	}
	if f.json {
		return writeJSON(c.stdout, out)
	}
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "device\tmemory\tfree\t")
	for _, d := range out.Devices {
		if d.Total == 0 {
			fmt.Fprintf(t, "%s\t–\t–\t%s\n", d.Name, d.Note)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", d.Name, meter.FormatBytes(d.Total), meter.FormatBytes(d.Free), d.Note)
	}
	fmt.Fprintln(t, "\t\t\t\npreset\tmemory\tusable\tTFLOP/s f32, f16; GB/s")
	for _, p := range out.Presets {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.3g, %.3g; %.0f\n", p.Name, meter.FormatBytes(p.Memory), meter.FormatBytes(p.Usable), p.F32/1e12, p.F16/1e12, p.Bandwidth/1e9)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if out.Processor != nil {
		fmt.Fprintf(c.stdout, "\n%v\n", out.Processor)
	}
	if network == nil {
		return nil
	}
	_, err = fmt.Fprintf(c.stdout, "\n%d ranks of MPI: each sends %.3g GB/s, and %v a message; for snug plan: -network %.0fMB -latency %v\n",
		network.Ranks, network.Rate/1e9, network.latency(), network.Rate/1e6, network.latency())
	return err
}

// processor measures the processor and keeps what it finds, or returns what is kept, nil if nothing is.
func (f *devicesFlags) processor() (*measured, error) {
	if !f.measure {
		if m, ok := readMeasured(); ok {
			return &m, nil
		}
		return nil, nil
	}
	m, err := measureProcessor(context.Background())
	if err != nil {
		return nil, fmt.Errorf("devices: -measure: %w", err)
	}
	if err := m.write(); err != nil {
		return nil, fmt.Errorf("devices: -measure: the rates cannot be kept: %w", err)
	}
	return &m, nil
}

// describe opens a device and returns its description.
func describe(name string) (d deviceReport) {
	d.Name = name
	dev, err := snug.Open(name)
	if err != nil {
		d.Note = oneLine(err)
		return d
	}
	if dev.IsCPU() {
		d.Note = fmt.Sprintf("%s, %d cores", runtime.GOARCH, runtime.NumCPU())
		if tier, err := bestTier(); err == nil {
			d.Note += ", instructions " + tier.String()
		}
		return d
	}
	free, total, err := dev.Memory()
	if err = errors.Join(err, dev.Close()); err != nil {
		d.Note = oneLine(err)
	}
	d.Total, d.Free = total, free
	return d
}

// bestTier returns the best instructions that this machine has and SNUG_CPU allows.
func bestTier() (best cpu.Tier, err error) {
	limit, err := cpu.Limit()
	for t := cpu.Go; t <= limit; t++ {
		if t.Has() {
			best = t
		}
	}
	return best, err
}
