package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
)

// minPageMemory is the least host limit of the store of pages, in bytes. Two layers of a small model take less.
const minPageMemory = 4 << 20

// checkpointPages is the folder for pages of activations, within the folder of all pages.
const checkpointPages = "snug.checkpoints"

func nothing() error { return nil }

// pagesDir returns the folder of a run's pages: the name of its output with .pages at the end, and the
// number of a rank above 0. A killed run leaves the
// folder behind, and the next run with the same output uses it.
func (t *tuning) pagesDir() string {
	dir := filepath.Clean(t.output) + ".pages"
	if t.follows() {
		dir += fmt.Sprintf("-%d", t.ranks.Rank())
	}
	return dir
}

// openPages opens the stores of the run's pages: of weights and state, and of activations. clean removes their folder.
func (t *tuning) openPages() (clean func() error, err error) {
	dir := t.pagesDir()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nothing, noPages(dir, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "snug.") {
			return nothing, usagef("tune: %s is where the pages of this run go, and it has other files, such as %s", dir, e.Name())
		}
	}
	limit, err := t.plan.Task.PageBytes(t.plan.Run)
	if err != nil {
		return nothing, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nothing, noPages(dir, err)
	}
	disk := t.plan.Peak[meter.OnDisk]
	for _, s := range []struct {
		store       **offload.Store
		dir         string
		bytes, host int64
	}{
		{&t.store, dir, disk.Total() - disk[meter.Activations], max(limit, minPageMemory)},
		{&t.checkpoints, filepath.Join(dir, checkpointPages), disk[meter.Activations], plan.CheckpointBytes},
	} {
		if s.bytes == 0 {
			continue
		}
		if *s.store, err = offload.Open(s.dir, offload.Options{HostLimit: s.host, DiskLimit: t.disk}); err != nil {
			return nothing, noPages(dir, err)
		}
	}
	return func() error { return removePages(dir) }, nil
}

func noPages(dir string, err error) error {
	return usagef("tune: %s is where the pages of this run go: %w", dir, err)
}

// removePages removes the folder of pages. If it is a link, the link is removed, and the folder behind it is left empty.
func removePages(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// pagesError replaces the error of a full disk with one that says how much the pages take.
func (t *tuning) pagesError(err error) error {
	if t.store == nil && t.checkpoints == nil || !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	want := meter.FormatBytesUp(t.plan.Peak[meter.OnDisk].Total())
	return usagef("tune: %s: the disk is full: the pages of this run take up to %s there: %w", t.pagesDir(), want, snug.ErrNoMemory)
}
