package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/dist/mpi"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
)

// A launcher of MPI may start snug tune on several ranks. Each has the model, and a share of the micro-batches of a
// step. Rank 0 chooses the plan, prints, and writes the checkpoints and the output.

// runOnRanks is run, on the ranks that a launcher has started, or alone.
func (t *tuning) runOnRanks() error {
	if t.shard != "" && !mpi.Launched() {
		return usagef("tune: -shard is for the ranks that mpiexec starts")
	}
	if !mpi.Launched() {
		return t.run()
	}
	world, err := mpi.Open(mpi.Options{})
	if err != nil {
		return err
	}
	if world.Size() > 1 {
		if err = t.join(world); err == nil {
			err = t.sameEnd()
		}
		if err != nil {
			world.Abort(errors.New(oneLine(err)))
		}
	}
	err = t.run()
	var ended console.Interruption
	interrupted := errors.As(err, &ended)
	if err != nil && !interrupted {
		world.Abort(errors.New(oneLine(err)))
	}
	if err := world.Close(); err != nil {
		world.Abort(err)
	}
	if interrupted && world.Rank() > 0 {
		return console.Interruption{Status: ended.Status} // rank 0 prints it
	}
	return err
}

// showOnRanks is showData of rank 0, or alone.
func (t *tuning) showOnRanks() error {
	if !mpi.Launched() {
		return t.showData()
	}
	world, err := mpi.Open(mpi.Options{})
	if err != nil {
		return err
	}
	if world.Rank() == 0 {
		err = t.showData()
	}
	return errors.Join(err, world.Close())
}

// leaveRanks returns an error of a rank that has not joined the others. These would wait for it, so it ends the job.
func leaveRanks(err error) error {
	if !mpi.Launched() || errors.Is(err, flag.ErrHelp) {
		return err
	}
	world, openErr := mpi.Open(mpi.Options{})
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	if world.Size() > 1 {
		world.Abort(errors.New(oneLine(err)))
	}
	return errors.Join(err, world.Close())
}

// join makes the run that of a rank.
func (t *tuning) join(r accum.Reducer) error {
	if t.fold {
		return errors.New("tune: -fold is for one rank, without a launcher of MPI")
	}
	if why := t.traits().Conflict("a launcher of MPI", quant8.Reduced); why != "" {
		return fmt.Errorf("tune: %s", why)
	}
	t.ranks = r
	if r.Rank() > 0 {
		quiet := *t.call
		quiet.stdout, quiet.stderr = io.Discard, io.Discard
		t.call, t.trace, t.page = &quiet, "", ""
	}
	return nil
}

// sameEnd returns an error on all ranks unless all of them are dry runs or none is: the others would wait.
func (t *tuning) sameEnd() error {
	dry := []float64{0}
	if t.dryRun {
		dry[0] = 1
	}
	if err := t.ranks.Sum(dry); err != nil {
		return err
	}
	if n := int(dry[0]); n > 0 && n < t.ranks.Size() {
		return usagef("tune: -dry-run is given to %d of %d ranks, want all or none", n, t.ranks.Size())
	}
	return nil
}

// follows reports whether another rank prints and writes.
func (t *tuning) follows() bool { return t.ranks != nil && t.ranks.Rank() > 0 }

// share returns the samples of a step for a rank, the most that one has.
func (t *tuning) share() int {
	if t.ranks == nil {
		return t.batch
	}
	return (t.batch-1)/t.ranks.Size() + 1
}

// divide returns the task with the ranks, and what they may divide.
func (t *tuning) divide(task plan.Task) plan.Task {
	if t.ranks == nil || t.ranks.Size() == 1 {
		return task
	}
	task.Ranks = t.ranks.Size()
	switch {
	case t.shard != "":
		task.Shard = []plan.Sharding{t.sharding}
	case t.rounding: // counts whole parameters
		task.Shard = []plan.Sharding{plan.Replicate}
	case t.traits().Refuses(quant8.Sharded) == "" && (!t.dividesWeights() || t.config.Experts.Count > 0 || t.batch < t.ranks.Size()):
		task.Shard = []plan.Sharding{plan.Replicate, plan.ShardState, plan.ShardGradients}
	}
	return task
}

// dividesWeights reports whether the passes of all ranks are as many. Those over pairs and of a teacher need not be.
func (f *tuneFlags) dividesWeights() bool { return f.beta == 0 && f.teacher.dir == "" }

// openShards makes the Storage of the matrices that the ranks divide, through which the ranks then make all calls.
func (t *tuning) openShards() (qlora.Storage, error) {
	if t.batch < t.ranks.Size() {
		return nil, usagef("tune: -batch %d: -shard weights wants a sample of each step for each of %d ranks", t.batch, t.ranks.Size())
	}
	if t.config.Experts.Count > 0 {
		return nil, usagef("tune: -shard weights: rows choose the matrices of %s, and not the same on all ranks", t.dir)
	}
	held, err := t.plan.Task.PageBytes(t.plan.Run)
	if err != nil {
		return nil, err
	}
	pages, err := accum.NewPages(t.ranks, accum.PagesOptions{Held: held})
	if err != nil {
		return nil, err
	}
	t.ranks, t.shards = pages, pages
	if t.monitor == nil {
		return pages, nil
	}
	return t.monitor.Pages(pages, meter.OnDevice, meter.Weights, pages.Bytes), nil
}

// batches returns the micro-batches of a step of this rank.
func (t *tuning) batches(step int) ([]dataset.Batch, error) {
	lo, hi := 0, t.batch
	if t.ranks != nil {
		lo, hi = accum.Shard(t.batch, t.ranks.Rank(), t.ranks.Size())
	}
	return t.data.Part(step, t.batch, t.plan.Run.Micro, lo, hi)
}

// chooseTogether chooses the plan on rank 0, and binds the other ranks to its choices.
func (t *tuning) chooseTogether() error {
	if t.ranks == nil {
		return t.chooseWithImages()
	}
	all := t.ranks.(accum.Broadcaster)
	if err := t.sameTime(all); err != nil {
		return err
	}
	if err := t.sameModel(); err != nil {
		return err
	}
	text := make([]byte, 512)
	if !t.follows() {
		if err := t.chooseWithImages(); err != nil {
			return err
		}
		found, err := json.Marshal(choicesOf(t.plan))
		if err != nil || len(found) > len(text) {
			return fmt.Errorf("tune: choices of %d bytes: %w", len(found), errors.Join(err, snug.ErrConfig))
		}
		for i := copy(text, found); i < len(text); i++ {
			text[i] = ' '
		}
	}
	if err := all.Broadcast(0, snug.SliceView(text)); err != nil || !t.follows() {
		return err
	}
	if err := json.Unmarshal(text, &t.begun); err != nil {
		return err
	}
	return t.chooseWithImages()
}

// sameTime gives the chat template of all ranks the time of rank 0.
func (t *tuning) sameTime(all accum.Broadcaster) error {
	text := []byte(fmt.Sprintf("%40s", t.chatTime()))
	if err := all.Broadcast(0, snug.SliceView(text)); err != nil || !t.follows() {
		return err
	}
	return t.setChatTime(strings.TrimSpace(string(text)))
}

// sameModel returns an error, on all ranks, unless all have the same model and teacher: a path may lead to other files on
// another machine.
func (t *tuning) sameModel() error {
	n := t.ranks.Size()
	list := []struct{ what, sum string }{
		{t.dir + ": config.json", t.modelSums.config}, {t.dir + ": the weights", t.modelSums.weights},
		{t.dir + ": the files of the processor", t.modelSums.processor},
		{t.files + ": the data", string(t.sum[:])},
		{t.teacher.dir + ": config.json", t.teacherSums.config}, {t.teacher.dir + ": the weights", t.teacherSums.weights},
	}
	sums := make([]float64, len(list)*n) // each rank adds its own numbers to zeros
	for i, c := range list {
		sum := crc32c.Update(0, []byte(c.sum))
		sums[i*n+t.ranks.Rank()] = float64(sum)
	}
	if err := t.ranks.Sum(sums); err != nil {
		return err
	}
	for i, c := range list {
		for rank, sum := range sums[i*n:][:n] {
			if sum != sums[i*n] {
				return fmt.Errorf("tune: %s: not the same on all ranks: rank %d has others than rank 0: %w", c.what, rank, snug.ErrConfig)
			}
		}
	}
	return nil
}

// takeOutput makes the output on the rank that writes it, with the files that training does not change.
func (t *tuning) takeOutput() (*output, error) {
	if t.follows() {
		return &output{path: t.output}, nil
	}
	out, err := takeOutput(t.output)
	if err != nil || !t.full {
		return out, err
	}
	if err := copyCompanions(t.output, t.dir, t.copyLinks, nil); err != nil {
		return nil, errors.Join(err, out.drop())
	}
	return out, nil
}
