package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// room is what a run will write to a folder, in bytes.
type room struct {
	what, dir string
	bytes     int64
}

// checkRoom returns an error unless the file systems have room for all of the list. A file system that does not say how
// much is free has room. spaceOf is files.SpaceOf.
func checkRoom(command string, list []room, spaceOf func(dir string) (files.Space, error)) error {
	wanted, named := map[string]int64{}, map[string][]string{}
	for _, r := range list {
		if r.bytes <= 0 {
			continue
		}
		space, err := spaceOf(r.dir)
		if err != nil {
			continue
		}
		wanted[space.Volume] += r.bytes
		named[space.Volume] = append(named[space.Volume], fmt.Sprintf("%s for %s in %s", meter.FormatBytesUp(r.bytes), r.what, r.dir))
		if wanted[space.Volume] > space.Free {
			return fmt.Errorf("%s: the disk has no room: the run writes %s, and %s are free: %w",
				command, strings.Join(named[space.Volume], ", "), meter.FormatBytes(space.Free), snug.ErrNoMemory)
		}
	}
	return nil
}

// keptCheckpoints is the number of checkpoints that a folder has at most: two, and the one that is being written.
const keptCheckpoints = 3

// rooms returns what the run will write besides pages. There is a model and a trainer.
func (t *tuning) rooms() []room {
	if t.follows() {
		return nil
	}
	trained := int64(0)
	for _, v := range t.model.Trainable() {
		trained += int64(v.Bytes())
	}
	out := room{"the adapter", t.output, trained}
	if t.full {
		out = room{"the model", t.output, t.plan.Task.Model.Parameters() * int64(t.dtype.Size())}
	}
	list := []room{out}
	if t.checkpoint != "" {
		held := t.trainer.Bytes()
		there, _ := filepath.Glob(filepath.Join(t.checkpoint, "step-*"))
		n := int64(max(1, keptCheckpoints-len(there)))
		list = append(list, room{"checkpoints", t.checkpoint, n * (trained + held[meter.Masters] + held[meter.State])})
	}
	return list
}

// pageRoom returns what the pages will take.
func (t *tuning) pageRoom() []room {
	held := int64(0) // by pages that a killed run left, whose place the new ones take
	_ = filepath.WalkDir(t.pagesDir(), func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				held += info.Size()
			}
		}
		return nil
	})
	return []room{{"pages", t.pagesDir(), t.plan.Peak[meter.OnDisk].Total() - held}}
}

// roomEvery is the time between two attempts to write to a full disk.
const roomEvery = 3 * time.Second

// waitForRoom calls save again while the disk is full, until a signal comes. What was trained stays in memory meanwhile.
func (t *tuning) waitForRoom(save func() error, every time.Duration) error {
	told, stop := false, t.stop.After
	if stop.Err() != nil { // the signal came before; the next one ends the waiting
		stop = t.stop.Now
	}
	for {
		err := save()
		if !files.IsFull(err) {
			return err
		}
		if !told {
			told = true
			need := ""
			if t.model != nil && t.trainer != nil {
				if list := t.rooms(); len(list) > 0 {
					need = ", which takes " + meter.FormatBytesUp(list[0].bytes)
				}
			}
			free := ""
			if space, err := files.SpaceOf(t.output); err == nil {
				free = fmt.Sprintf(" (%s are free)", meter.FormatBytes(space.Free))
			}
			fmt.Fprintf(t.call.stderr, "snug: tune: the disk is full%s: %s; the result%s, stays in memory, and is written to %s as soon as there is room; a signal ends the run without it\n",
				free, oneLine(err, t.call.args...), need, t.output)
		}
		select {
		case <-stop.Done():
			return errors.Join(err, console.Interruption{Text: "interrupted while the disk was full: " + lostWithout(t.checkpoint), Status: t.stop.Status()})
		case <-time.After(every):
		}
	}
}

// lostWithout says what is left of a run that could not write its result.
func lostWithout(checkpoint string) string {
	if checkpoint == "" {
		return "nothing is saved without -checkpoint"
	}
	return "the same command goes on from its last checkpoint"
}

// saving saves the result, and waits for room unless other ranks take part in each attempt.
func (t *tuning) saving() error {
	if t.ranks != nil && t.plan.Run.Shard == plan.ShardWeights {
		return t.save()
	}
	return t.waitForRoom(t.save, roomEvery)
}
