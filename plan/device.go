package plan

import (
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// Device is a machine: its memory, and the rates by which times are predicted. Rates are
// in floating-point operations or bytes a second. They are the rates that a training
// program reaches, not the rates of a data sheet.
type Device struct {
	Name    string
	Memory  int64 // bytes
	Unified bool  // the host has the same memory
	// Reserved is the part of Memory that the driver, its context and other programs
	// take.
	Reserved int64
	// Fragmentation is the memory that the allocator may lose, as a share of activations
	// and workspace.
	Fragmentation float64

	// Host and Disk are the bytes that a plan may use there. 0 means that it uses none.
	Host, Disk int64

	F32, F16      float64 // products of float32, and of 16-bit types
	Bandwidth     float64 // of the device's memory
	HostF32       float64 // of the host's processor
	Elementwise   float64 // arithmetic of an optimizer's update on the device; 0: F32
	HostBandwidth float64 // of the host's memory
	Link          float64 // between host and device, each way
	DiskRate      float64 // of reading and of writing

	// Network and Latency are for tasks with ranks: the bytes a second that a rank sends while it receives as many, and
	// the seconds that a message takes besides. "mpiexec -n 2 snug devices" measures them.
	Network, Latency float64
}

const gib = 1 << 30

// card returns a GPU with half the peaks of its data sheet, in a host with 300 GFLOP/s,
// 40 GB/s, a disk of 2 GB/s and a network of 100 Gbit/s. The context of a CUDA program takes about half a GiB.
func card(name string, memory, f32, f16, bandwidth, link float64) Device {
	return Device{
		Name: name, Memory: int64(memory * gib), Reserved: gib / 2, Fragmentation: 0.05,
		F32: f32 / 2, F16: f16 / 2, Bandwidth: 0.8 * bandwidth,
		HostF32: 300e9, HostBandwidth: 40e9, Link: link, DiskRate: 2e9, Network: 10e9, Latency: 20e-6,
	}
}

// devices are typical machines of their sizes, with the peaks of their data sheets: dense
// products of 16 bits with sums in float32.
var devices = []Device{
	card("8GB", 8, 20.3e12, 40.6e12, 448e9, 12e9),   // GeForce RTX 3070
	card("12GB", 12, 12.7e12, 25.4e12, 360e9, 12e9), // GeForce RTX 3060
	card("16GB", 16, 48.7e12, 97.5e12, 717e9, 24e9), // GeForce RTX 4080
	card("24GB", 24, 82.6e12, 165e12, 1008e9, 24e9), // GeForce RTX 4090
	card("40GB", 40, 19.5e12, 312e12, 1555e9, 24e9), // A100 40 GB
	card("80GB", 80, 19.5e12, 312e12, 2039e9, 24e9), // A100 80 GB
	{ // Apple M2: Metal recommends to use two thirds of the memory
		Name: "16GB-unified", Memory: 16 * gib, Unified: true, Reserved: 16 * gib / 3, Fragmentation: 0.05,
		F32: 1.8e12, F16: 1.8e12, Bandwidth: 80e9, HostF32: 300e9, HostBandwidth: 80e9, Link: 80e9, DiskRate: 1.5e9, Network: 1e9, Latency: 50e-6,
	},
}

// Devices returns the presets: 8GB, 12GB, 16GB, 24GB, 40GB, 80GB and 16GB-unified. Plans
// use no host memory and no disk until Host and Disk are set.
func Devices() []Device { return slices.Clone(devices) }

// DeviceNamed returns a preset. The error wraps [snug.ErrConfig] and lists their names.
func DeviceNamed(name string) (Device, error) {
	var names []string
	for _, d := range devices {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return Device{}, invalid("unknown device %.40q, want one of %s", name, strings.Join(names, ", "))
}

// Validate reports whether bytes are from 0 to 2^60, Fragmentation from 0 to 1, Reserved
// at most Memory, and rates positive and finite. The error wraps [snug.ErrConfig].
func (d Device) Validate() error {
	for _, f := range []struct {
		name string
		n    int64
	}{{"Memory", d.Memory}, {"Reserved", d.Reserved}, {"Host", d.Host}, {"Disk", d.Disk}} {
		if f.n < 0 || f.n > 1<<60 {
			return invalid("device %.40q: %s is %d bytes, want 0 to 2^60", d.Name, f.name, f.n)
		}
	}
	if d.Reserved > d.Memory {
		return invalid("device %.40q: %d bytes of %d are reserved", d.Name, d.Reserved, d.Memory)
	}
	if !(d.Fragmentation >= 0 && d.Fragmentation <= 1) {
		return invalid("device %.40q: Fragmentation is %v, want 0 to 1", d.Name, d.Fragmentation)
	}
	for _, f := range []struct {
		name string
		rate float64
	}{
		{"F32", d.F32}, {"F16", d.F16}, {"Bandwidth", d.Bandwidth}, {"HostF32", d.HostF32},
		{"HostBandwidth", d.HostBandwidth}, {"Link", d.Link}, {"DiskRate", d.DiskRate},
	} {
		if !(f.rate > 0) || math.IsInf(f.rate, 0) {
			return invalid("device %.40q: %s is %v, want a positive number", d.Name, f.name, f.rate)
		}
	}
	if !(d.Elementwise >= 0) || math.IsInf(d.Elementwise, 0) {
		return invalid("device %.40q: Elementwise is %v, want a finite number of 0 or more", d.Name, d.Elementwise)
	}
	if !(d.Network >= 0 && d.Latency >= 0) || math.IsInf(d.Network, 0) || math.IsInf(d.Latency, 0) {
		return invalid("device %.40q: Network is %v and Latency %v, want finite numbers of 0 or more", d.Name, d.Network, d.Latency)
	}
	return nil
}

// rate returns the rate of products of a type.
func (d Device) rate(t snug.DType) float64 {
	if t == snug.F32 {
		return d.F32
	}
	return d.F16
}
