package quant8

import "github.com/snug-ml/snug/internal/optim"

// maxTogether is the maximum number of chunks of a Storage that are updated together, so
// that workers wait for one another less often.
const maxTogether = 8

// stepStored updates the chunks of a parameter from element lo while their blobs are
// acquired. It updates as many together as the Storage says. Where norms are summed it
// updates one after another, because sums are added in the order of the chunks. Meanwhile
// the Storage may read the next blobs.
func (a *Optimizer) stepStored(q *param, lo int, j stepJob) error {
	p, g, number := j.p, j.g, j.first
	chunk, end := lo/a.o.Chunk, Blocks(lo+p.Len(), a.o.Chunk)
	together := 1
	if s, ok := a.o.Storage.(Grouper); ok && j.sums == nil {
		together = max(1, min(maxTogether, s.Together(int(q.bytes(a.o.Chunk)))))
	}
	for ; chunk < end; chunk += together {
		begin := chunk*a.o.Chunk - lo
		n := min(together*a.o.Chunk, p.Len()-begin)
		var err error
		if j.p, err = p.Slice(begin, begin+n); err != nil {
			return err
		}
		if j.g, err = g.Slice(begin, begin+n); err != nil {
			return err
		}
		j.first = number + uint64(begin)
		next := min(chunk+together, end)
		if err := a.stepTogether(q, chunk, j, q.keys[next:min(next+1, end)]); err != nil {
			return err
		}
	}
	return nil
}

// stepTogether updates all chunks of a job; the first has number chunk. Each chunk then
// counts as updated; with a rule that needs the whole parameter, chunks count as updated
// at the end of the step. If the Storage does not give a blob, the chunks before it are
// updated. coming are the keys of the chunks after the job.
func (a *Optimizer) stepTogether(q *param, chunk int, j stepJob, coming []string) (err error) {
	held, done, dirty := 0, 0, false
	defer func() {
		for i := range held {
			if e := a.release(q, chunk+i, dirty); e != nil {
				done, err = min(done, i), e
			}
		}
		if n := min(done*a.o.Chunk, j.p.Len()); n > 0 && j.sums == nil && !a.whole(q) {
			a.note(a.claimOf(q, chunk*a.o.Chunk, n), optim.Updated)
		}
	}()
	for count := Blocks(j.p.Len(), a.o.Chunk); held < count; held++ {
		_, size := q.span(chunk+held, a.o.Chunk)
		if j.blobs[held], err = a.acquire(q, chunk+held, size); err != nil {
			break
		}
	}
	if held == 0 {
		return err
	}
	if s, ok := a.o.Storage.(Prefetcher); ok && len(coming) > 0 {
		s.Prefetch(coming...)
	}
	n := min(held*a.o.Chunk, j.p.Len())
	if e := j.shorten(n); e != nil {
		return e
	}
	if j.sums == nil {
		a.note(a.claimOf(q, chunk*a.o.Chunk, n), optim.Begun)
	}
	j.Run()
	done, dirty = held, j.sums == nil
	return err
}

// shorten leaves the first n elements.
func (j *stepJob) shorten(n int) (err error) {
	if j.p, err = j.p.Slice(0, n); err == nil {
		j.g, err = j.g.Slice(0, n)
	}
	return err
}
