package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/offload"
)

// childArgs says that the test binary, started once more, is the program, with these
// arguments.
const childArgs = "SNUG_OFFLOAD_EXAMPLE_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(childArgs); args != "" {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// interrupted starts the program, sends it a signal when it has made a step, and returns
// what it printed and left in the folder of temporary files.
func interrupted(t *testing.T, s os.Signal, args string) (stdout, stderr string, left []os.DirEntry) {
	temp := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, childArgs+"="+args)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); errors.Is(err, syscall.ENOEXEC) {
		t.Skip("an emulator runs this test, which cannot start itself once more")
	}
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	require.NoError(t, err, errs.String())
	scratch, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Len(t, scratch, 1)
	require.NoError(t, cmd.Process.Signal(s))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode(), errs.String())
	left, err = os.ReadDir(temp)
	require.NoError(t, err)
	return first + string(rest), errs.String(), left
}

// TestSignals: a signal leaves no temporary folder, and commits what is kept.
func TestSignals(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot send such signals to another one here")
	}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		for _, only := range []string{"", " -only paged -delayed", " -only memory"} {
			_, stderr, left := interrupted(t, s, "-width 64 -steps 1000000"+only)
			require.Empty(t, left, "%v%s", s, only)
			require.Equal(t, "offload: interrupted\n", stderr)
		}
	}
	dir := filepath.Join(t.TempDir(), "run")
	args := "-width 64 -steps 1000000 -dir " + dir
	_, stderr, left := interrupted(t, syscall.SIGTERM, args)
	require.Empty(t, left)
	var step int
	_, err := fmt.Sscanf(stderr, "offload: interrupted after step %d of 1000000, which is committed", &step)
	require.NoError(t, err, stderr)
	_, err = offload.Verify(dir)
	require.NoError(t, err)
	stdout, _, left := interrupted(t, os.Interrupt, args)
	require.Empty(t, left)
	require.Contains(t, stdout, fmt.Sprintf("going on from step %d; was the run before cut off: false\n", step))
}

// TestNothingIsLeft: errors and panics leave no temporary folder.
func TestNothingIsLeft(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	c := config{width: 64, steps: 2, commit: 1, limit: 2 * mib, view: func(string, ...any) {}}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Error(t, run(t.Context(), file, c))
	other := c
	other.only = "other"
	require.ErrorContains(t, run(t.Context(), "", other), "-only other")
	small := c
	small.limit = 1000
	require.Error(t, run(t.Context(), "", small))
	c.view = func(string, ...any) { panic("view") }
	require.PanicsWithValue(t, "view", func() { _ = run(t.Context(), "", c) })
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}
