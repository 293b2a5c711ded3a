package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
)

// A run wants room for what it writes to each file system before its first step.
func TestCheckRoom(t *testing.T) {
	spaces := map[string]files.Space{"a": {Free: 100 << 20, Volume: "1"}, "b": {Free: 100 << 20, Volume: "1"}, "c": {Free: 50 << 20, Volume: "2"}}
	spaceOf := func(dir string) (files.Space, error) {
		if s, ok := spaces[dir]; ok {
			return s, nil
		}
		return files.Space{}, errors.ErrUnsupported
	}
	for _, c := range []struct {
		name string
		list []room
		want string
	}{
		{"nothing", nil, ""},
		{"fits", []room{{"the model", "a", 60 << 20}, {"checkpoints", "c", 50 << 20}}, ""},
		{"too large", []room{{"the model", "a", 101 << 20}}, "tune: the disk has no room: the run writes 101.00 MiB for the model in a, and 100.00 MiB are free"},
		{"together", []room{{"the model", "a", 60 << 20}, {"checkpoints", "b", 60 << 20}}, "60.00 MiB for the model in a, 60.00 MiB for checkpoints in b, and 100.00 MiB are free"},
		{"less than is there", []room{{"pages", "c", -1 << 30}, {"the model", "c", 50 << 20}}, ""},
		{"unknown", []room{{"the model", "d", 1 << 50}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkRoom("tune", c.list, spaceOf)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.ErrorIs(t, err, snug.ErrNoMemory)
		})
	}
}

// A full disk at the end does not lose the run: it tries again until there is room, or a signal comes.
func TestWaitForRoom(t *testing.T) {
	full := fmt.Errorf("save: %w", &fs.PathError{Op: "write", Path: "out", Err: syscall.ENOSPC})
	for _, c := range []struct {
		name    string
		fails   int   // attempts that fail
		err     error // of these
		signal  int   // the attempt with a signal, 0 for none
		early   bool  // a signal came before
		calls   int
		written bool
	}{
		{"room", 0, full, 0, false, 1, true},
		{"room later", 3, full, 0, false, 4, true},
		{"another error", 1, syscall.EIO, 0, false, 1, false},
		{"a signal", 100, full, 2, false, 2, false},
		{"two signals", 100, full, 2, true, 2, false},
		{"room after a signal", 3, full, 0, true, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, cancelNow := context.WithCancel(context.Background())
			after, cancelAfter := context.WithCancel(now)
			defer cancelNow()
			if c.early {
				cancelAfter()
			}
			var errs strings.Builder
			one := &tuning{tuneFlags: tuneFlags{output: t.TempDir()}, call: &call{stderr: &errs}, stop: console.Stop{After: after, Now: now}}
			calls := 0
			err := one.waitForRoom(func() error {
				if calls++; calls == c.signal {
					if cancelAfter(); c.early {
						cancelNow()
					}
				}
				if calls <= c.fails {
					return c.err
				}
				return nil
			}, time.Millisecond)
			cancelAfter()
			require.Equal(t, c.calls, calls)
			if c.written {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.err)
			}
			var ended console.Interruption
			require.Equal(t, c.signal > 0, errors.As(err, &ended))
			waits := 0
			if c.fails > 0 && c.err == full {
				waits = 1
			}
			require.Equal(t, waits, strings.Count(errs.String(), "the disk is full"), "it is said once")
		})
	}
}
