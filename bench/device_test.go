package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest" // registers the kind "opaque"
	"github.com/stretchr/testify/require"
)

// openOpaque returns a device whose memory Go cannot address.
func openOpaque(t *testing.T) *snug.Device {
	t.Helper()
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func TestRunOnDevice(t *testing.T) {
	dir := t.TempDir()
	status, stdout, stderr := invoke(t, "-short", "-device", "opaque:0", "-only", "^(launch |cast f32-bf16 |adamw|rotary bf16 )",
		"-json", "-o", filepath.Join(dir, "out.svg"))
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "opaque:0 with 1024 MiB of memory, limits, measured by the matrix product")
	require.Regexp(t, `(?m)^  matmul f32 +[0-9.]+ GFLOP/s$`, stdout)
	require.Regexp(t, `(?m)^  copy 4 MiB +[0-9.]+ GB/s`, stdout)
	require.Regexp(t, `(?m)^launch +f32-bf16 +n=1 +[0-9.]+ .s +\d+% +– +– +\d+$`, stdout)
	require.NotRegexp(t, `(?m)^adamw `, stdout, "it is the host's")

	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(lastLine(stdout)), &rows))
	kernels := map[any]bool{}
	for _, row := range rows {
		kernels[row["kernel"]] = true
		require.Equal(t, "opaque:0", row["device"])
		require.Empty(t, row["tier"])
		require.Positive(t, row["median_s"])
		require.Equal(t, row["kernel"] != "launch", row["fraction"].(float64) > 0, row)
	}
	require.Len(t, kernels, 5)
	svg, err := os.ReadFile(filepath.Join(dir, "out.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), ">snug, opaque:0<")
}

func TestDeviceThatIsNotThere(t *testing.T) {
	for name, want := range map[string]string{"vulkan:0": "backend is not in this program", "opaque:7": "there are 1 opaque devices"} {
		status, stdout, stderr := invoke(t, "-device", name)
		require.Equal(t, 1, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
}

// kernelThat is a work whose kernel returns an error.
func kernelThat(name string, err error) work {
	return work{kernel: name, dtype: "f32", shape: "n=1", ops: 1, prepare: func(*memory) (run, done func() error, _ error) {
		return func() error { return err }, nil, nil
	}}
}

func TestKernelsThatADeviceLacks(t *testing.T) {
	dev := openOpaque(t)
	good, lacks := kernelThat("good", nil), kernelThat("lacks", fmt.Errorf("x: %w", snug.ErrNotBuilt))
	fails := kernelThat("fails", snug.ErrNoMemory)
	for _, c := range []struct {
		name string
		todo []work
		want string // of the table and what follows it
		err  string
	}{
		{"one of two", []work{lacks, good}, `(?s)^kernel.*\nlacks .* –  +not on this device\n\ngood .*emulated.*\n\n1 of 2 kernels are not on opaque:0\n$`, ""},
		{"all", []work{lacks, lacks}, `(?s)2 of 2 kernels are not on opaque:0\n$`, "no kernel ran on opaque:0"},
		{"after a failure", []work{fails, good}, `(?s)\nfails .* failed: snug: out of memory\n\ngood `, "1 of 2 kernels failed on opaque:0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			s := &session{m: &machine{dev: dev, emulated: true}, o: options{device: "emu:0"}, table: newTable(&out), bar: &progress{}}
			require.NoError(t, s.measure(t.Context(), c.todo))
			err := s.outcome(&out, len(c.todo))
			require.Regexp(t, c.want, out.String())
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.err)
			}
		})
	}

	s := &session{m: known(), o: options{device: "cpu"}, table: newTable(new(bytes.Buffer)), bar: &progress{}}
	require.ErrorIs(t, s.measure(t.Context(), []work{lacks}), snug.ErrNotBuilt, "the CPU has every kernel")
	ended, end := context.WithCancel(t.Context())
	end()
	s.m = &machine{dev: dev}
	require.ErrorIs(t, s.measure(ended, []work{good}), context.Canceled)
}

func TestMemoryOnADevice(t *testing.T) {
	dev := openOpaque(t)
	before, _, err := dev.Memory()
	require.NoError(t, err)
	const n = 20000 // more than a period
	here, there := &memory{dev: snug.CPU()}, &memory{dev: dev}
	for _, dt := range floats {
		want, got := here.operand(dt, n), there.operand(dt, n)
		require.Same(t, dev, got.Device())
		require.Same(t, snug.CPU(), want.Device())
		back := hostVector(dt, n)
		require.NoError(t, snug.Copy(back, got))
		require.Equal(t, device.Mem(&want).Bytes(), device.Mem(&back).Bytes())
	}
	require.NoError(t, there.err)
	require.Zero(t, there.empty(snug.F32, kerneltest.Total/4+1).Len())
	require.Zero(t, there.operand(snug.F32, 5).Len(), "nor what follows")
	require.ErrorIs(t, there.err, snug.ErrNoMemory)
	require.NoError(t, there.close())
	require.NoError(t, dev.Sync())
	after, _, err := dev.Memory()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestOperandsThatDoNotFit(t *testing.T) {
	closed := false
	w := work{prepare: func(mem *memory) (run, done func() error, err error) {
		x := mem.empty(snug.F32, kerneltest.Total/4+1)
		if x.Len() == 0 {
			err = errors.New("because of it")
		}
		return nil, func() error { closed = true; return nil }, err
	}}
	err := w.on(openOpaque(t), func(*local) error { panic("no kernel to use") })
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.True(t, closed)
}

func init() { driver.Register("pinning", pinning{}) }

// pinning opens opaque devices that copy pinned memory.
type pinning struct{}

func (pinning) Count() (int, error) { return 1, nil }

func (pinning) Open(index int) (driver.Driver, error) {
	b, err := driver.Lookup("opaque")
	if err != nil {
		return nil, err
	}
	d, err := b.Open(index)
	return &copier{d}, err
}

type copier struct{ driver.Driver }

func (*copier) AllocPinned(size int) (driver.Mem, error) {
	return driver.Mem{Host: unsafe.Pointer(unsafe.SliceData(make([]byte, size))), Size: size}, nil
}

func (*copier) FreePinned(driver.Mem) error { return nil }

func (c *copier) Point() (driver.Fence, error) { return copied{}, nil }

func (c *copier) StartCopyIn(dst, src driver.Mem, _ driver.Fence) (driver.Fence, error) {
	return copied{}, c.CopyIn(dst, src.Bytes())
}

func (c *copier) StartCopyOut(dst, src driver.Mem, _ driver.Fence) (driver.Fence, error) {
	return copied{}, c.CopyOut(dst.Bytes(), src)
}

// copied is a copy that has ended.
type copied struct{}

func (copied) Wait() error  { return nil }
func (copied) Await() error { return nil }
func (copied) Release()     {}

func TestPinned(t *testing.T) {
	p, err := newPinned(t.Context(), openOpaque(t))
	require.NoError(t, err)
	require.Zero(t, p, "it has none")

	dev, err := snug.Open("pinning:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	p, err = newPinned(t.Context(), dev)
	require.NoError(t, err)
	require.Positive(t, p.in)
	require.Positive(t, p.out)
	var out bytes.Buffer
	m := known()
	m.pinned = p
	require.NoError(t, m.print(&out))
	require.Regexp(t, `  host, pinned +to the device [0-9.]+ GB/s   from it [0-9.]+ GB/s\n\n$`, out.String())
}

func TestTimesEndWithTheQueue(t *testing.T) {
	runs, waits := 0, 0
	l := &local{f: func() error { runs++; return nil }, wait: func() error { waits++; return nil }}
	_, err := l.run(7, 0)
	require.NoError(t, err)
	require.Equal(t, [2]int{7, 1}, [2]int{runs, waits})
	l.wait = func() error { return errors.New("of the queue") }
	_, err = l.run(1, 0)
	require.EqualError(t, err, "of the queue")
}
