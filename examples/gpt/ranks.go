package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/plan"
)

// bucket is how many elements of gradients the ranks add at a time.
const bucket = 1 << 16

// ranked runs the training on one rank, on the ranks that a launcher of MPI has started, or on ranks within this process.
// The batch of a step is the same, whatever the number of ranks. Only rank 0 prints.
func ranked(stop console.Stop, o options, stdout, stderr io.Writer) error {
	switch {
	case underLauncher():
		return launched(stop, o, stdout, stderr)
	case o.ranks > 1:
		return local(stop, o, stdout, stderr)
	}
	return trainAndReport(stop, o, stdout, stderr)
}

// silent is an error that another rank prints.
type silent struct{ error }

func (s silent) Unwrap() error { return s.error }

// local runs all ranks in goroutines. When one fails, the others end.
func local(stop console.Stop, o options, stdout, stderr io.Writer) error {
	ctx, end := context.WithCancelCause(stop.Now)
	defer end(nil)
	reducers, err := accum.Local(ctx, o.ranks)
	if err != nil {
		return inputError{err}
	}
	errs := make([]error, len(reducers))
	var wait sync.WaitGroup
	for rank, r := range reducers {
		o, stdout, stderr := o, stdout, stderr
		if rank > 0 {
			stdout, stderr = io.Discard, io.Discard
		}
		if err := o.joins(r); err != nil {
			return inputError{err}
		}
		wait.Go(func() {
			defer func() {
				if errs[rank] != nil {
					end(errs[rank])
				}
			}()
			errs[rank] = errors.New("a panic") // unless it ends
			errs[rank] = trainAndReport(stop, o, stdout, stderr)
		})
	}
	wait.Wait()
	if cause := context.Cause(ctx); cause != nil && stop.Now.Err() == nil {
		return cause // the first error, which has ended the other ranks
	}
	return errs[0]
}

// divide sets what the ranks divide.
func (o *options) divide(shard string) error {
	for _, s := range []plan.Sharding{plan.Replicate, plan.ShardState, plan.ShardGradients} {
		if s.String() == shard {
			o.shard = s
		}
	}
	switch {
	case o.shard.String() != shard:
		return fmt.Errorf("-shard %.40q: want replicate, state or gradients", shard)
	case o.shard == plan.Replicate:
		return nil
	case o.ranks == 1 && !underLauncher():
		return errors.New("-shard is for -ranks, or a launcher of MPI")
	case o.rule != "adamw" || o.poison > 0:
		return errors.New("-shard is for -optimizer adamw, without -inject-nan")
	}
	return nil
}

// joins makes the run that of a rank.
func (o *options) joins(r accum.Reducer) error {
	if o.compare || o.memory > 0 {
		return errors.New("ranks do not go with -compare and -memory")
	}
	o.reducer, o.ranks = r, r.Size()
	return nil
}
