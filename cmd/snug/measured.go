package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/plan"
)

// measured is what "snug devices -measure" found of a processor. It is kept in the user's cache, where plan and tune find it.
type measured struct {
	Processor string    `json:"processor"`
	Threads   int       `json:"threads"`
	Tier      string    `json:"instructions"`
	Version   string    `json:"snug"`
	At        time.Time `json:"measured"`

	F32         float64 `json:"f32_per_second"` // of a step of training
	F16         float64 `json:"bf16_per_second"`
	Elementwise float64 `json:"elementwise_per_second"`
	Bandwidth   float64 `json:"bytes_per_second"`
	DiskRate    float64 `json:"disk_bytes_per_second"`
}

// thisProcessor returns a measured without rates.
func thisProcessor() (measured, error) {
	tier, err := bestTier()
	info, _ := debug.ReadBuildInfo()
	return measured{Processor: cpuid.CPU.BrandName, Threads: runtime.GOMAXPROCS(0), Tier: tier.String(), Version: versionOf(info).Version}, err
}

// cacheDir is where measuredPath is. Tests have another one.
var cacheDir = os.UserCacheDir

// measuredPath is the file of measured.
func measuredPath() (string, error) {
	dir, err := cacheDir()
	return filepath.Join(dir, "snug", "processor.json"), err
}

// readMeasured returns what was measured of this processor by this version with as many threads. ok is false if nothing was, or if the file is
// not readable.
func readMeasured() (m measured, ok bool) {
	own, err := thisProcessor()
	if err != nil {
		return m, false
	}
	path, err := measuredPath()
	if err != nil {
		return m, false
	}
	text, err := files.ReadInput(path, files.Description)
	if err != nil || json.Unmarshal(text, &m) != nil {
		return m, false
	}
	for _, rate := range []float64{m.F32, m.F16, m.Elementwise, m.Bandwidth, m.DiskRate} {
		if !(rate >= leastRate && rate <= mostRate) {
			return m, false
		}
	}
	return m, m.Processor == own.Processor && m.Threads == own.Threads && m.Tier == own.Tier && m.Version == own.Version
}

// Rates beyond these are of no processor and no disk.
const leastRate, mostRate = 1e5, 1e16

// write keeps m for the next call of readMeasured.
func (m measured) write() error {
	path, err := measuredPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return files.Replace(path, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(m)
	})
}

// device returns the processor for plans.
func (m measured) device(disk int64) plan.Device {
	d := assumedProcessor(disk)
	d.Name = fmt.Sprintf("%s with %d threads, measured on %s", m.Processor, m.Threads, m.At.Format(time.DateOnly))
	d.F32, d.F16, d.HostF32, d.Elementwise = m.F32, m.F16, m.F32, m.Elementwise
	d.Bandwidth, d.HostBandwidth, d.Link, d.DiskRate = m.Bandwidth, m.Bandwidth, m.Bandwidth, m.DiskRate
	return d
}

// String says the rates.
func (m measured) String() string {
	return fmt.Sprintf("%s, %d threads, instructions %s: training at %.3g GFLOP/s in f32 and %.3g in bf16, %.3g GB/s of memory, 8-bit AdamW %.3g million elements a second, disk %.3g GB/s",
		m.Processor, m.Threads, m.Tier, m.F32/1e9, m.F16/1e9, m.Bandwidth/1e9, m.Elementwise/plan.StateOps(8)/1e6, m.DiskRate/1e9)
}

// processor is the processor of this machine if it was measured, else an assumed one, so that equal commands have equal plans.
func processor(disk int64) plan.Device {
	if m, ok := readMeasured(); ok {
		return m.device(disk)
	}
	return assumedProcessor(disk)
}

// faster is how much of the time a run in another type must take at most to be worth a line.
const faster = 0.87

// noteOtherType writes a line if the run would fit in bf16 or in f32 too, whichever it is not in, and be much faster on a processor that was measured.
func noteOtherType(w io.Writer, p plan.Plan, memory int64, process plan.Process) {
	if _, ok := readMeasured(); !ok || p.Run.Compute == snug.F16 {
		return
	}
	task, other := p.Task, snug.BF16
	if p.Run.Compute == snug.BF16 {
		other = snug.F32
	}
	task.Compute = []snug.DType{other}
	if q, err := fitProcess("", gentlest(task, task.Ranks > 1), memory, process); err == nil && q.Seconds < faster*p.Seconds {
		fmt.Fprintf(w, "\n-compute %s fits too, and a step takes about %.0f %% of this time\n", other, 100*q.Seconds/p.Seconds)
	}
}
