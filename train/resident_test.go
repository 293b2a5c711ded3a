package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// fitJob is a training within a limit of resident memory, in a process of its own.
type fitJob struct {
	Limit  int64
	Tokens int
	Full   bool // trains all weights, and else adapters of matrices in 4 bits
}

// fitResult is what it took.
type fitResult struct {
	Base, Predicted, Peak int64
}

const fitVariable = "SNUG_FIT_JOB"

// fitConfig is a model of 30 million parameters.
func fitConfig() *transformer.Config {
	c := tinyConfig("qwen3", true)
	c.Vocab, c.Dim, c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.Context = 16384, 384, 1024, 12, 6, 3, 64, 1024
	c.Windows, c.Rope.Dim, c.ScoreScale, c.InitStd, c.QKVBias = make([]int, c.Layers), 64, 0.125, 0.02, false
	return c
}

func (j fitJob) task() (task plan.Task, err error) {
	m, err := fitConfig().Plan(j.Tokens)
	const rate, fast = 1e11, 1e10 // of a few cores, to compare plans
	task = plan.Task{
		Model: m, Batch: 1, Compute: []snug.DType{snug.BF16}, Masters: []amp.MasterForm{amp.NoMaster}, StateBits: []int{32},
		Gradients: []plan.Gradient{plan.SumF32},
		Device: plan.Device{Name: "this machine", Unified: true, Memory: 1 << 60, F32: rate, F16: rate, Bandwidth: fast,
			HostF32: rate, HostBandwidth: fast, Link: fast, DiskRate: fast / 10},
	}
	if j.Full {
		task.StateBits, task.Gradients = []int{8}, []plan.Gradient{plan.InBackward}
	} else {
		task.Rank, task.Frozen = 8, []int{4}
	}
	return task, err
}

// run trains as the documentation of package plan says, without limits of Go's heap.
func (j fitJob) run() (r fitResult, err error) {
	process := plan.ThisProcess()
	r.Base = process.Base
	task, err := j.task()
	if err != nil {
		return r, err
	}
	task.Process = &process
	fit, err := plan.Best(task.Fit(j.Limit - plan.RuntimeBytes))
	if err != nil {
		return r, err
	}
	if r.Predicted, err = task.Resident(fit.Run); err != nil {
		return r, err
	}
	model, training := transformer.Options{Seed: 1}, Options{Schedule: Constant(1e-5)}
	if !j.Full {
		model.Adapter = &qlora.AdapterOptions{Alpha: 16}
	}
	if err := fit.Apply(&model, &training); err != nil {
		return r, err
	}
	m, err := transformer.New(fitConfig(), model)
	if err != nil {
		return r, err
	}
	t, err := New(Model[transformer.Batch](m), training)
	if err != nil {
		return r, err
	}
	for step := range 3 {
		var b transformer.Batch
		for i := range j.Tokens {
			b.Tokens = append(b.Tokens, int32((i*i+7*step)%16384))
		}
		b.Labels = append(append([]int32{}, b.Tokens[1:]...), -1)
		if _, err := t.Train(context.Background(), []transformer.Batch{b}); err != nil {
			return r, err
		}
	}
	_, r.Peak = meter.Resident()
	return r, nil
}

// TestFitJob is the other process.
func TestFitJob(t *testing.T) {
	text, found := os.LookupEnv(fitVariable)
	if !found {
		t.Skip("TestFitResidentMeasured starts it")
	}
	var j fitJob
	require.NoError(t, json.Unmarshal([]byte(text), &j))
	r, err := j.run()
	require.NoError(t, err)
	line, err := json.Marshal(r)
	require.NoError(t, err)
	fmt.Printf("result %s\n", line)
}

// TestFitResidentMeasured measures programs that train with Fit and a Process: their memory stays at or below the limit, of which
// Fit is not given plan.RuntimeBytes. Most of the limit is used.
func TestFitResidentMeasured(t *testing.T) {
	if !kerneltest.Full() || runtime.GOOS != "linux" || kerneltest.Race {
		t.Skip("trains models of 30 million parameters; the peak counts the parent on other systems, and the race detector's memory")
	}
	for _, j := range []fitJob{{Limit: 96 << 20, Tokens: 256}, {Limit: 84 << 20, Tokens: 256}, {Limit: 192 << 20, Tokens: 512, Full: true}} {
		text, err := json.Marshal(j)
		require.NoError(t, err)
		c := exec.Command(os.Args[0], "-test.run=^TestFitJob$")
		c.Env = append(os.Environ(), fitVariable+"="+string(text))
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		_, line, found := strings.Cut(string(out), "result ")
		require.True(t, found, "%s", out)
		line, _, _ = strings.Cut(line, "\n")
		var r fitResult
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		t.Logf("%+v: %+v, %.2f MiB beyond the prediction, %.2f beyond the limit", j, r, float64(r.Peak-r.Predicted)/(1<<20), float64(r.Peak-j.Limit)/(1<<20))
		require.LessOrEqual(t, r.Predicted, j.Limit-plan.RuntimeBytes)
		require.LessOrEqual(t, r.Peak, j.Limit)
		require.Greater(t, r.Peak, j.Limit*8/10)
	}
}
