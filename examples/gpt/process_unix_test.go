//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/train"
	"github.com/stretchr/testify/require"
)

// started is a run in a process of its own.
type started struct {
	*exec.Cmd
	out, errs bytes.Buffer
}

func start(t *testing.T, args ...string) *started {
	s := &started{Cmd: command(t, args...)}
	s.Stdout, s.Stderr = &s.out, &s.errs
	require.NoError(t, s.Start())
	t.Cleanup(func() { _ = s.Process.Kill() })
	return s
}

// TestSecondProcess: while a run owns a folder, another one is refused and takes nothing
// away, neither pages nor checkpoints. A signal then ends the first after its step, which
// is saved, and the run can be gone on with.
func TestSecondProcess(t *testing.T) {
	text := textFile(t, 500)
	for _, off := range []string{"", "all"} {
		dir := t.TempDir()
		args := []string{"-preset", "tiny", "-text", text, "-off", off, "-checkpoint", dir, "-save-every", "5"}
		first := start(t, append(args, "-steps", "100000")...)
		waitForStep(t, dir, 5)
		for range 3 {
			status, out, errs := runArgs(append(args, "-steps", "100000")...)
			require.Equal(t, 2, status)
			require.Contains(t, errs, "in use")
			require.Equal(t, 1, strings.Count(errs, "\n"))
			require.Empty(t, out)
		}
		if off == "" {
			pages, err := filepath.Glob(filepath.Join(dir, "snug-scratch-*", "snug.pages"))
			require.NoError(t, err)
			require.Len(t, pages, 1)
		}
		found := stepsIn(t, dir)
		var step int
		_, err := fmt.Sscanf(found[len(found)-1], "step-%d", &step)
		require.NoError(t, err)
		waitForStep(t, dir, step+5) // it goes on

		require.NoError(t, first.Process.Signal(syscall.SIGTERM))
		require.Error(t, first.Wait())
		require.Equal(t, 128+int(syscall.SIGTERM), first.ProcessState.ExitCode(), first.errs.String())
		said := regexp.MustCompile(`(?m)^gpt: interrupted after step (\d+) of 100000, which is saved`).FindStringSubmatch(first.errs.String())
		require.Len(t, said, 2, first.errs.String())
		found = stepsIn(t, dir)
		_, err = fmt.Sscan(said[1], &step)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("step-%08d", step), found[len(found)-1])
		pages, err := filepath.Glob(filepath.Join(dir, "snug-scratch-*"))
		require.NoError(t, err)
		require.Empty(t, pages)

		again := start(t, append(args, "-steps", "100000")...)
		waitForStep(t, dir, step+1)
		require.NoError(t, again.Process.Signal(os.Interrupt))
		require.Error(t, again.Wait())
		require.Equal(t, 128+int(syscall.SIGINT), again.ProcessState.ExitCode(), again.errs.String())
		require.Contains(t, again.out.String(), fmt.Sprintf("resuming from step %d of 100000\n", step))
	}
}

// TestInterruptedRunEndsWithTheSameBits: where a signal ends a run does not matter.
func TestInterruptedRunEndsWithTheSameBits(t *testing.T) {
	text := textFile(t, 500)
	straight, dir := t.TempDir(), t.TempDir()
	args := []string{"-preset", "tiny", "-text", text, "-steps", "12", "-checkpoint"}
	status, _, errs := runArgs(append(args, straight)...)
	require.Zero(t, status, errs)
	for i := range 20 {
		var errs bytes.Buffer
		status := runUntil(3, append(args, dir), &errs)
		if status == 0 {
			require.Greater(t, i, 1)
			break
		}
		require.Contains(t, errs.String(), "interrupted after step")
	}
	require.Equal(t, stateAt(t, straight, 12), stateAt(t, dir, 12))
}

// TestSecondSignalEndsAtOnce, also while a checkpoint is written, which leaves the one
// before.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-preset", "tiny", "-text", textFile(t, 500), "-checkpoint", dir, "-save-every", "2", "-steps", "100000"}
	first := start(t, args...)
	waitForStep(t, dir, 2)
	for range 50 {
		_ = first.Process.Signal(os.Interrupt)
		time.Sleep(time.Millisecond)
	}
	require.Error(t, first.Wait())
	require.NotZero(t, first.ProcessState.ExitCode())
	saved, err := train.OpenFolder(dir, 2)
	require.NoError(t, err)
	done, _, _ := saved.Newest()
	require.GreaterOrEqual(t, done, 2)
	require.NoError(t, saved.Close())

	now, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	require.NotZero(t, run(console.Stop{After: now, Now: now}, args, &out, &errs))
	require.Equal(t, "gpt: interrupted; a run with -checkpoint goes on from its last checkpoint\n", errs.String())
}

// TestInterruptedWithoutCheckpoints says that nothing is saved.
func TestInterruptedWithoutCheckpoints(t *testing.T) {
	cmd := command(t, "-preset", "tiny", "-text", textFile(t, 500), "-steps", "100000", "-off", "all")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "step 1/") {
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Equal(t, 128+int(syscall.SIGTERM), cmd.ProcessState.ExitCode())
	require.Contains(t, errs.String(), "nothing is saved without -checkpoint")
}

// TestPipesAndDevices: neither a pipe nor a device is text or takes a chart, and no run waits
// for one.
func TestPipesAndDevices(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.csv")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{
		{"-text", pipe}, {"-text", "/dev/zero"}, {"-text", os.DevNull}, {"-text", dir}, {"-timeline", pipe, "-text", textFile(t, 500)},
		{"-compare", "-text", "/dev/zero"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			cmd := start(t, append([]string{"-preset", "tiny", "-steps", "1"}, args...)...)
			ended := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
			require.Error(t, cmd.Wait())
			require.True(t, ended.Stop(), "%v: it waits", args)
			require.Equal(t, 2, cmd.ProcessState.ExitCode(), "%v: %s", args, cmd.errs.String())
			require.Equal(t, 1, strings.Count(cmd.errs.String(), "\n"), cmd.errs.String())
			require.Empty(t, cmd.out.String())
			if args[1] != dir {
				require.Contains(t, cmd.errs.String(), "regular file")
			}
		})
	}
}
