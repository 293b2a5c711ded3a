package main

import (
	"iter"
	"math/rand/v2"
	"slices"
)

// picked is a micro-batch: the numbers of some samples, of those that are held out if held says so.
type picked struct {
	samples []int
	step    int // of training
	held    bool
}

// order has the numbers of samples to train on, which come in a new order in each epoch, and of those that are held out.
type order struct {
	train, held []int
	seed        uint64
	epoch       int64 // of now, from 1 on; 0: none yet
	now         []int
}

// newOrder divides n samples by a share that is held out, at random by a seed.
func newOrder(n int, share float64, seed uint64) *order {
	all := rand.New(rand.NewPCG(seed, 1<<63)).Perm(n)
	k := min(int(share*float64(n)+0.5), n-1)
	if share > 0 && n > 1 {
		k = max(k, 1)
	}
	return &order{train: slices.Sorted(slices.Values(all[max(0, k):])), held: slices.Sorted(slices.Values(all[:max(0, k)])), seed: seed}
}

// numbered returns an order of n samples to train on, and others that are held out.
func numbered(n, held int, seed uint64) *order {
	o := &order{seed: seed}
	for i := range n {
		o.train = append(o.train, i)
	}
	for i := range held {
		o.held = append(o.held, i)
	}
	return o
}

// len returns the number of samples to train on.
func (o *order) len() int { return len(o.train) }

// number returns the sample at a place of all epochs.
func (o *order) number(at int64) int {
	n := int64(len(o.train))
	if epoch := at/n + 1; epoch != o.epoch {
		o.epoch, o.now = epoch, slices.Clone(o.train)
		rand.New(rand.NewPCG(o.seed, uint64(epoch))).Shuffle(len(o.now), func(i, j int) { o.now[i], o.now[j] = o.now[j], o.now[i] })
	}
	return o.now[at%n]
}

// batches returns the micro-batches of a step, counted from 0, that takes a number of samples: each of at most micro samples. A step at the end of an epoch
// goes on with the first samples of the next.
func (o *order) batches(step, samples, micro int) (list []picked) {
	var numbers []int
	for i := range samples {
		numbers = append(numbers, o.number(int64(step)*int64(samples)+int64(i)))
	}
	for part := range slices.Chunk(numbers, max(1, micro)) {
		list = append(list, picked{samples: part, step: step})
	}
	return list
}

// heldOut yields the samples that are held out in micro-batches.
func (o *order) heldOut(micro int) iter.Seq2[picked, error] {
	return func(yield func(picked, error) bool) {
		for part := range slices.Chunk(o.held, max(1, micro)) {
			if !yield(picked{samples: part, held: true}, nil) {
				return
			}
		}
	}
}
