package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// This file finds the plan of a process that trains on the CPU, for plan and for tune alike: what plan says that fits into
// -memory, tune keeps.

// Training may take more than is predicted: up to 1/spare of the memory beyond plan.Process.Base, and spareBytes.
const spare, spareBytes = 32, 1 << 20

// baseNoise is the most by which the same command's plan.Process.Base differs from one process to the next, about: 0.6 MiB
// were measured. A limit that is named holds in the next process too.
const baseNoise = 1 << 20

// readingBytes is what plan adds to its process for what only tune has: up to 4 MiB of tokens of the data, and the code that
// reads them.
const readingBytes = 6 << 20

// memoryFlag is the flag of the process's limit. deviceMemoryFlag is the flag of the device's memory.
func memoryFlag(to *int64) *flagRow {
	return sizeFlag("memory", to, "limit of the resident memory of the process, which trains on the CPU, such as 6GiB; default: none")
}

func deviceMemoryFlag(to *int64, help string) *flagRow {
	return sizeFlag("device-memory", to, "limit of what is counted on the device of -device; "+help)
}

// assumedProcessor has rates to compare plans by.
func assumedProcessor(disk int64) plan.Device {
	const rate, fast = 1e11, 1e10
	return plan.Device{Name: "an assumed processor (snug devices -measure measures this one)", Unified: true, Memory: 1 << 60, Disk: disk,
		F32: rate, F16: rate, Bandwidth: fast, HostF32: rate, HostBandwidth: fast, Link: fast, DiskRate: fast / 10,
		Network: fast / 10, Latency: 5e-5}
}

// gentlest returns the tasks to try in turn: the choices that change the results come last. For adapters, that is frozen
// weights in fewer than 16 bits. For all weights in bfloat16, these are in order: master weights of 24 bits; updates in the
// backward pass, which have no master weights and are rounded stochastically; and, with an optimizer that folds, gradients
// that are folded into its state. What the task names already stays. whole says that gradients are summed before an update.
func gentlest(task plan.Task, whole bool) []plan.Task {
	t, full := optimizerTraits(task.Optimizer), task.Rank == 0
	named := task.Masters != nil || task.Gradients != nil
	halves := !slices.Equal(task.Compute, []snug.DType{snug.F32})
	if task.Gradients == nil && (whole || full && halves || task.Beside != nil) {
		task.Gradients = []plan.Gradient{plan.SumF32}
	}
	if !full && task.StateBits == nil {
		task.StateBits = []int{32} // of adapters, which are small
	}
	further := task
	switch {
	case !full && task.Frozen == nil:
		task.Frozen = []int{16}
		return []plan.Task{task, further}
	case !full || named || whole || !slices.Equal(task.Compute, []snug.DType{snug.BF16}) || t.Refuses(quant8.InBackward) != "":
		return []plan.Task{task}
	}
	masters := task
	masters.Masters = []amp.MasterForm{amp.Split24Master}
	further.Gradients, further.Masters = []plan.Gradient{plan.InBackward}, []amp.MasterForm{amp.NoMaster}
	list := []plan.Task{task, masters, further}
	if t.Refuses(quant8.Folded) == "" {
		further.Gradients = []plan.Gradient{plan.Folded}
		list = append(list, further)
	}
	return list
}

// fitFirst returns the best plan of the first of some tasks that fits, or the error that misses the least.
func fitFirst(tasks []plan.Task, limit int64) (p plan.Plan, err error) {
	var nearest *plan.MissError
	for _, task := range tasks {
		var miss *plan.MissError
		if p, err = plan.Best(task.Fit(limit)); !errors.As(err, &miss) {
			return p, err
		}
		if nearest == nil || miss.Minimum < nearest.Minimum {
			nearest = miss
		}
	}
	return p, nearest
}

// fitProcess is fitFirst for the limit -memory of a process, 0 for none. The error names the least that is enough.
func fitProcess(command string, tasks []plan.Task, memory int64, process plan.Process) (plan.Plan, error) {
	if memory == 0 {
		return fitFirst(tasks, 0)
	}
	for i := range tasks {
		tasks[i].Process = &process
	}
	p, err := fitFirst(tasks, max(1, memory-max(0, memory-process.Base)/spare-spareBytes))
	var miss *plan.MissError
	if !errors.As(err, &miss) {
		return p, err
	}
	wanted := miss.Minimum + spareBytes
	wanted += (wanted-process.Base+spare-2)/(spare-1) + baseNoise
	var flags []string
	if tasks[0].Device.Disk == 0 {
		flags = append(flags, "-disk")
	}
	whole := func(l plan.Layer) bool { return l.Tiles.Whole > 0 && l.Rows > l.Tiles.Whole }
	if slices.Equal(tasks[0].Tiles, []int{1}) && tasks[0].Micro == 0 && slices.ContainsFunc(tasks[0].Model.Layers, whole) {
		flags = append(flags, "-tiles auto")
	}
	less := ""
	if len(flags) > 0 {
		less = ", or less with " + strings.Join(flags, " and ")
	}
	miss.Limit, miss.Minimum = memory, wanted
	return p, processMiss{miss, fmt.Sprintf("%s: -memory %s: nothing fits: the process takes %s before there is a model, and the smallest plan wants -memory %dMiB%s: %v",
		command, meter.FormatBytes(memory), meter.FormatBytesUp(process.Base), (wanted+1<<20-1)>>20, less, snug.ErrNoMemory)}
}

// processMiss is a MissError whose Limit and Minimum are values of -memory.
type processMiss struct {
	*plan.MissError
	text string
}

func (e processMiss) Error() string { return e.text }
func (e processMiss) Unwrap() error { return e.MissError }
