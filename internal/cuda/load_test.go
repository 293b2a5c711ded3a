//go:build (cuda || hip) && linux

package cuda

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

// logged returns what is logged while do runs.
func logged(do func()) string {
	var text bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	do()
	return text.String()
}

// What the driver compiles is logged, a line for each module, and machine code is not.
func TestCompiledAtRunTime(t *testing.T) {
	for _, test := range []struct {
		major, minor int32
		want         string // the code that is loaded
		lines        int
	}{
		{8, 0, "sm_80", 0}, {8, 9, "sm_86", 0}, {9, 0, "sm_90", 0}, {10, 0, "sm_100", 0}, {10, 3, "sm_100", 0},
		{11, 0, "PTX of compute_80", 1}, {12, 0, "sm_120", 0}, {12, 1, "sm_120", 0}, {13, 0, "PTX of compute_80", 1},
	} {
		f, d := openFake(t, func(f *fake) { f.major, f.minor = test.major, test.minor })
		f.kernels["k"], f.kernels["l"] = func([]byte) {}, func([]byte) {}
		m := &gpu.Module{Name: "test", Image: testImage("80", "86", "90", "100", "120")}
		text := logged(func() {
			for _, name := range []string{"k", "l", "k"} {
				l := grid(name, nil)
				l.Module = m
				require.NoError(t, d.LaunchGrid(l))
			}
		})
		var codes []string
		for _, code := range f.modules {
			codes = append(codes, code)
		}
		require.Equal(t, []string{test.want}, codes)
		require.Equal(t, test.lines, strings.Count(text, "\n"), text)
		if test.lines > 0 {
			require.Contains(t, text, "the driver compiles kernels")
			require.Contains(t, text, "module=test")
		}
	}
}

// PTX in parts is compiled as far as its kernels are launched, each part once.
func TestPartsOfPTX(t *testing.T) {
	var codes []gpu.Code
	for _, part := range []string{".entry k() .entry k2()", ".entry l()", ".entry m()"} {
		codes = append(codes, gpu.Code{Arch: gpu.Arch{Capability: 80}, PTX: true, Data: []byte(part)})
	}
	image, err := gpu.PackImage(codes, nil)
	require.NoError(t, err)
	f, d := openFake(t, nil)
	parted := &gpu.Module{Name: "test", Image: image}
	launch := func(name string) error {
		f.kernels[name] = func([]byte) {}
		l := grid(name, nil)
		l.Module = parted
		return d.LaunchGrid(l)
	}
	text := logged(func() {
		for _, name := range []string{"k", "l", "k2", "k", "l"} {
			require.NoError(t, launch(name))
		}
	})
	require.Equal(t, 2, strings.Count(text, "the driver compiles kernels"))
	var loaded []string
	for _, code := range f.modules {
		loaded = append(loaded, code)
	}
	require.ElementsMatch(t, []string{".entry k() .entry k2()", ".entry l()"}, loaded)
	require.ErrorContains(t, launch("none"), "no PTX of none for compute capability 8.0")
}

// Machine code that a driver refuses is compiled from PTX.
func TestRefusedMachineCode(t *testing.T) {
	for _, refusal := range []Result{errInvalidImage, errNoBinary} {
		f, d := openFake(t, nil)
		f.kernels["k"] = func([]byte) {}
		f.compile = func(code string) Result {
			if code == "sm_80" {
				return refusal
			}
			return success
		}
		text := logged(func() { require.NoError(t, d.LaunchGrid(grid("k", nil))) })
		require.Contains(t, text, "the driver does not take machine code")
		for _, code := range f.modules {
			require.Equal(t, "PTX of compute_80", code)
		}

		f, d = openFake(t, nil)
		f.kernels["k"] = func([]byte) {}
		f.compile = func(string) Result { return refusal }
		require.ErrorContains(t, d.LaunchGrid(grid("k", nil)), "sm_80 in the image of test", "the first error")
	}
}

// Other kernels are launched while the driver compiles.
func TestLaunchWhileCompiling(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"] = func([]byte) {}
	require.NoError(t, d.LaunchGrid(grid("k", nil)))
	started, finish := make(chan bool), make(chan bool)
	f.compile = func(string) Result {
		close(started)
		<-finish
		return success
	}
	slow := grid("k", nil)
	slow.Module = &gpu.Module{Name: "slow", Image: testImage("80")}
	result := make(chan error, 1)
	go func() { result <- d.LaunchGrid(slow) }()
	<-started
	quick := make(chan error, 1)
	go func() { quick <- d.LaunchGrid(grid("k", nil)) }()
	select {
	case err := <-quick:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		close(finish)
		require.FailNow(t, "a launch waits for the compiler")
	}
	close(finish)
	require.NoError(t, <-result)
}
