package meter

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/saturate"
)

// Component is a part of the memory of a training run.
type Component int

// The components.
const (
	Weights     Component = iota // weights that the forward pass reads
	Masters                      // float32 precision kept in addition to weights of 16 bits
	Gradients                    // accumulated over a window
	State                        // state of the optimizer
	Activations                  // kept, or passing through between layers
	Workspace                    // scratch of the layers
	Allowance                    // bytes that an allocator loses between blocks
	Components                   // number of components
)

var componentNames = [Components]string{
	"weights", "master weights", "gradients", "optimizer state", "activations", "workspace", "allowance",
}

// String returns the name, such as "optimizer state".
func (c Component) String() string {
	if c < 0 || c >= Components {
		return fmt.Sprintf("Component(%d)", int(c))
	}
	return componentNames[c]
}

// Tier is the memory where bytes lie.
type Tier int

// The tiers. If device and host share one memory, bytes on the host count on the device.
const (
	OnDevice Tier = iota
	OnHost
	OnDisk
	Tiers // number of tiers
)

var tierNames = [Tiers]string{"device", "host", "disk"}

// String returns "device", "host" or "disk".
func (t Tier) String() string {
	if t < 0 || t >= Tiers {
		return fmt.Sprintf("Tier(%d)", int(t))
	}
	return tierNames[t]
}

// Bytes is a number of bytes for each component.
type Bytes [Components]int64

// Total returns the sum, at most the largest int64.
func (b Bytes) Total() (sum int64) {
	for _, n := range b {
		sum = saturate.Add(sum, n)
	}
	return sum
}

// Usage is the bytes on each tier.
type Usage [Tiers]Bytes

// units of ParseBytes, the longer names first.
var units = []struct {
	name string
	size float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// ParseBytes reads a size such as 512KiB, 1.5GiB or 64MB; a number alone is bytes. The
// error wraps [snug.ErrConfig]: for a text that is not a size, and for less than a byte
// or more than 2^60.
func ParseBytes(s string) (int64, error) {
	for _, u := range units {
		number, found := strings.CutSuffix(s, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n*u.size >= 1) || n*u.size > 1<<60 {
			break
		}
		return int64(n * u.size), nil
	}
	return 0, invalid("%.40q is not a size, want one such as 512KiB, 1.5GiB or 64MB", s)
}

// FormatBytesUp writes a size as [FormatBytes] does, with the last digit rounded up. It
// is for limits that must suffice: without its space, the text is a size for [ParseBytes]
// of n or more.
func FormatBytesUp(n int64) string {
	text := FormatBytes(n)
	if read, err := ParseBytes(strings.ReplaceAll(text, " ", "")); err != nil || read >= n {
		return text
	}
	for _, u := range units {
		if u.name != "" && strings.HasSuffix(text, " "+u.name) {
			text = strconv.FormatFloat(math.Ceil(100*float64(n)/u.size)/100, 'f', 2, 64) + " " + u.name
		}
	}
	return text
}

// FormatBytes writes a size with two digits after the point and the largest of the units
// B, KiB, MiB, GiB and TiB in which it is at least 1: "1.79 MiB".
func FormatBytes(n int64) string {
	x, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if x < 1024 && x > -1024 {
			break
		}
		x, unit = x/1024, next
	}
	if unit == "B" {
		return strconv.FormatInt(n, 10) + " B"
	}
	return strconv.FormatFloat(x, 'f', 2, 64) + " " + unit
}
