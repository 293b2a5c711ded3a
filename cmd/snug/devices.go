package main

import (
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
the presets of snug plan -device, with the rates by which it predicts times. On ranks that a launcher
of MPI has started, rank 0 also measures the network between them, for snug plan -ranks.
`,
		flags: func() flagTable { return flagTable{jsonFlag(new(bool))} },
		closing: `GPUs need a program that is built for them:

  go install -tags cuda github.com/snug-ml/snug/cmd/snug@latest     Linux and Windows, NVIDIA
  go install -tags hip github.com/snug-ml/snug/cmd/snug@latest      Linux, AMD
  go install -tags metal github.com/snug-ml/snug/cmd/snug@latest    macOS

  mpiexec -n 2 snug devices
`,
		run: runDevices,
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
	asJSON := false
	if _, err := c.parse(flagTable{jsonFlag(&asJSON)}, 0, 0); err != nil {
		return leaveRanks(err)
	}
	names, broken := snug.Devices()
	var out struct {
		Devices []deviceReport `json:"devices"`
		Presets []presetReport `json:"presets"`
		Network *networkReport `json:"network,omitempty"`
	}
	network, follows, err := measureRanks()
	if err != nil || follows {
		return err
	}
	out.Network = network
	for _, name := range names {
		out.Devices = append(out.Devices, describe(name))
	}
	for _, d := range plan.Devices() {
		out.Presets = append(out.Presets, presetReport{d.Name, d.Memory, d.Memory - d.Reserved, d.Unified, d.F32, d.F16, d.Bandwidth})
	}
	if broken != nil {
		fmt.Fprintf(c.stderr, "snug: %s\n", oneLine(broken)) // the other devices are still listed
	}
	if asJSON {
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
	if err := t.Flush(); err != nil || network == nil {
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "\n%d ranks of MPI: each sends %.3g GB/s, and %v a message; for snug plan: -network %.0fMB -latency %v\n",
		network.Ranks, network.Rate/1e9, network.latency(), network.Rate/1e6, network.latency())
	return err
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
