//go:build emu

// Package emu is a device without hardware: the CUDA and the Metal text of the
// kernels, compiled for the host by its C++ compiler and run thread by thread in
// a process of its own, which holds the device's memory. It shows what kernels
// compute and where they err, not how fast they are.
//
// emu:0 runs the CUDA text and emu:1 the Metal text. With SNUG_CUDA=90 emu:0 has the
// instructions of compute capability 9.0 in the modes plain and asan. The environment variable
// SNUG_EMU chooses how both are compiled: "plain", the default; "portable", without
// the instructions that only NVIDIA's GPUs have, as HIP for AMD's cards with waves of 32 lanes;
// "wave64", as for those with waves of 64; "asan", with the address sanitizer; or "check", which finds races, block memory that is read
// before it is written, and accesses outside of every allocation; or "late", in which others see a thread's stores as late
// as barriers and fences allow. With SNUG_METAL=2.4 emu:1
// compiles the text as the Metal language of macOS 12 and 13, without bfloat. With SNUG_FLUSH=1
// emu:1 takes subnormal numbers for 0, as Apple's GPUs do. With SNUG_ORDER=1, or another seed,
// blocks, warps and lanes take turns in an order by that seed, in place of their own. With SNUG_NAN=7fffffff, or another
// quiet NaN, every NaN that arithmetic in float32 gives is that one, in place of the host's. SNUG_EMU_CXX
// names the compiler; the default is c++.
package emu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

func init() { driver.Register("emu", backend{}) }

// languages are the kernel languages, by number of the device.
var languages = [...]string{"cu", "metal"}

type backend struct{}

func (backend) Count() (int, error) { return len(languages), nil }

func (backend) Open(index int) (driver.Driver, error) {
	c, err := compilerFor(languages[index])
	if err != nil {
		return nil, err
	}
	limit, err := gpu.CapabilityLimit()
	if err != nil {
		return nil, err
	}
	host, err := c.host()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(host)
	if languages[index] == "metal" && os.Getenv("SNUG_FLUSH") == "1" {
		cmd.Args = append(cmd.Args, "flush")
	}
	if seed := os.Getenv("SNUG_ORDER"); seed != "" {
		if n, err := strconv.ParseUint(seed, 10, 64); err != nil || n == 0 {
			return nil, fmt.Errorf("SNUG_ORDER is %q, want a seed from 1 on: %w", seed, driver.ErrNotBuilt)
		}
		cmd.Args = append(cmd.Args, seed)
	}
	if os.Getenv("SNUG_EMU") == "late" {
		cmd.Args = append(cmd.Args, "late")
	}
	if pattern, _ := nanPattern(); pattern != "" { // compilerFor has checked it
		cmd.Args = append(cmd.Args, "nan="+pattern)
	}
	d := &device{
		compiler: c, cmd: cmd, loaded: map[*gpu.Module]bool{}, live: map[uintptr]int{},
		hopper: languages[index] == "cu" && limit == 90 && len(c.checks) == 0,
		plain:  languages[index] == "cu" && c.hip, addresses: languages[index] == "cu",
	}
	d.cmd.Stderr = &d.stderr
	// The threads of kernels run on stacks of the emulator, and it ends with its memory.
	d.cmd.Env = append(d.cmd.Environ(), "ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0")
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the emulator: %w", err)
	}
	d.in, d.out = in, bufio.NewReader(out)
	return d, nil
}

// Total is the memory of an emulated device in bytes.
const Total = 1 << 32

// The commands of host.cpp.
const (
	opLoad = iota + 1
	opAlloc
	opFree
	opCopyIn
	opCopyOut
	opCopy
	opLaunch
	opSync
)

type device struct {
	compiler  *compiler
	hopper    bool
	plain     bool // the text has no matrix units, as in HIP
	addresses bool // kernels take addresses, and have float64, as in CUDA
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Reader
	stderr    tail

	mu     sync.Mutex
	msg    []byte
	loaded map[*gpu.Module]bool
	live   map[uintptr]int // sizes of allocations
	used   int64
	lost   error // set once the process has ended

	launches atomic.Int64
}

// multiprocessors is few, so that small shapes fill the device or leave it idle.
const multiprocessors = 16

// Multiprocessors implements [gpu.ParallelLauncher].
func (d *device) Multiprocessors() int { return multiprocessors }

// HasDoubles implements [driver.Doubler].
func (d *device) HasDoubles() bool { return d.addresses }

// TakesAddresses implements [driver.Addresser].
func (d *device) TakesAddresses() bool { return d.addresses }

// Launches implements [driver.LaunchCounter].
func (d *device) Launches() int64 { return d.launches.Load() }

func (d *device) Alloc(size int) (driver.Mem, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(size) > Total-d.used {
		return driver.Mem{}, fmt.Errorf("%d bytes wanted, %d free: %w", size, Total-d.used, driver.ErrNoMemory)
	}
	d.op(opAlloc).u64(uint64(size))
	if err := d.send(nil); err != nil {
		return driver.Mem{}, err
	}
	var addr uint64
	if err := d.receive(&addr); err != nil {
		return driver.Mem{}, err
	}
	if addr == 0 {
		return driver.Mem{}, fmt.Errorf("%d bytes wanted, the host has no more: %w", size, driver.ErrNoMemory)
	}
	d.live[uintptr(addr)] = size
	d.used += int64(size)
	return driver.Mem{Addr: uintptr(addr), Size: size}, nil
}

func (d *device) Free(m driver.Mem) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	size, ok := d.live[m.Addr]
	if !ok {
		return fmt.Errorf("free of %#x, which was not allocated: %w", m.Addr, driver.ErrDevice)
	}
	delete(d.live, m.Addr)
	d.used -= int64(size)
	d.op(opFree).u64(uint64(m.Addr))
	return d.send(nil)
}

func (d *device) CopyIn(dst driver.Mem, src []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.op(opCopyIn).u64(uint64(dst.Addr)).u64(uint64(len(src)))
	return d.send(src)
}

func (d *device) CopyOut(dst []byte, src driver.Mem) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.op(opCopyOut).u64(uint64(src.Addr)).u64(uint64(len(dst)))
	if err := d.send(nil); err != nil {
		return err
	}
	if err := d.reply(); err != nil {
		return err
	}
	return d.receive(dst)
}

func (d *device) Copy(dst, src driver.Mem) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.op(opCopy).u64(uint64(dst.Addr)).u64(uint64(src.Addr)).u64(uint64(src.Size))
	return d.send(nil)
}

func (d *device) Launch(j driver.Job) error { return gpu.Run(j, d) }

// LaunchGrid implements [gpu.Launcher].
func (d *device) LaunchGrid(l *gpu.Launch) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.load(l.Module); err != nil {
		return err
	}
	d.launches.Add(1)
	d.op(opLaunch).text(l.Func)
	for _, n := range l.Blocks {
		d.u32(uint32(n))
	}
	d.u32(uint32(l.Threads)).u32(uint32(len(l.Operands)))
	for _, m := range l.Operands {
		if m.Size == 0 {
			m.Addr = 0
		}
		d.u64(uint64(m.Addr))
	}
	d.text(string(l.Params)).u32(uint32(l.Shared)).u32(uint32(len(l.Maps)))
	for i := range l.Maps {
		d.tensorMap(&l.Maps[i])
	}
	return d.send(nil)
}

func (d *device) tensorMap(m *gpu.TensorMap) {
	d.u64(uint64(m.Mem.Addr))
	for _, n := range m.Dims {
		d.u64(uint64(n))
	}
	for _, n := range m.Strides {
		d.u64(uint64(n))
	}
	d.u64(uint64(m.Rows))
}

// Hopper implements [gpu.HopperLauncher].
func (d *device) Hopper(*gpu.Module) bool { return d.hopper }

// HasUnits implements [gpu.UnitsLauncher].
func (d *device) HasUnits() bool { return !d.plain }

// load compiles a module and loads it, once.
func (d *device) load(m *gpu.Module) error {
	if d.loaded[m] || d.lost != nil {
		return d.lost
	}
	path, err := d.compiler.module(m)
	if err != nil {
		return err
	}
	d.op(opLoad).text(path)
	if err := d.send(nil); err != nil {
		return err
	}
	if err := d.reply(); err != nil {
		return err
	}
	d.loaded[m] = true
	return nil
}

func (d *device) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sync()
}

func (d *device) sync() error {
	d.op(opSync)
	if err := d.send(nil); err != nil {
		return err
	}
	return d.reply()
}

func (d *device) Memory() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Total - d.used, Total, d.lost
}

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.sync()
	if d.lost != nil {
		return err // the process is gone
	}
	d.lost = fmt.Errorf("the device is closed: %w", driver.ErrDevice)
	return errors.Join(err, d.in.Close(), d.cmd.Wait())
}

// op begins a command.
func (d *device) op(code uint32) *device {
	d.msg = d.msg[:0]
	return d.u32(code)
}

func (d *device) u32(x uint32) *device {
	d.msg = binary.LittleEndian.AppendUint32(d.msg, x)
	return d
}

func (d *device) u64(x uint64) *device {
	d.msg = binary.LittleEndian.AppendUint64(d.msg, x)
	return d
}

func (d *device) text(s string) *device {
	d.u32(uint32(len(s)))
	d.msg = append(d.msg, s...)
	return d
}

// send writes the command and the data that follow it.
func (d *device) send(data []byte) error {
	if d.lost != nil {
		return d.lost
	}
	_, err := d.in.Write(d.msg)
	if err == nil && len(data) > 0 {
		_, err = d.in.Write(data)
	}
	return d.check(err)
}

// receive reads a value of fixed size.
func (d *device) receive(x any) error {
	return d.check(binary.Read(d.out, binary.LittleEndian, x))
}

// reply reads the first error of the commands so far.
func (d *device) reply() error {
	var n uint32
	if err := d.receive(&n); err != nil {
		return err
	}
	text := make([]byte, n)
	if err := d.receive(text); err != nil {
		return err
	}
	if n > 0 {
		return &Fault{Text: withLines(string(text))}
	}
	return nil
}

// check turns the end of the process into an error that stays.
func (d *device) check(err error) error {
	if err == nil {
		return nil
	}
	d.in.Close()
	if e := d.cmd.Wait(); e != nil {
		err = e
	}
	d.lost = fmt.Errorf("the emulator ended: %w: %w\n%s", err, driver.ErrDevice, d.stderr.String())
	return d.lost
}

// Fault is what a kernel did wrong, or a command that named memory that is not
// there.
type Fault struct{ Text string }

func (f *Fault) Error() string { return "emulator: " + f.Text }

// Unwrap returns [driver.ErrDevice].
func (f *Fault) Unwrap() error { return driver.ErrDevice }

// tail keeps the beginning of its input.
type tail struct{ strings.Builder }

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.Builder.Write(p[:min(len(p), max(0, tailBytes-t.Len()))])
	return len(p), nil
}
