package train

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/offload"
)

// staging copies chunks of gradients and weights between a device and the host, where the pages are, as ZeRO-Offload
// does (Ren et al. 2021, arXiv:2101.06840). While the host updates a chunk, the device copies the next gradients to the
// host and the weights of the chunk before to their parameter.
//
// It holds four chunks of float32 in host memory, and four in pinned memory if the device copies in parallel with its
// queue.
type staging struct {
	mover          *offload.Mover
	grads, weights ahead
	sent           offload.Move // the last copy to the device, which arrives after all before it
}

// movedChunks is how many chunks are copied at the same time: the next gradients and the next weights to the host, and
// two chunks of weights to the device.
const movedChunks = 4

// newStaging returns a staging for pages of chunk elements, of parameters that have up to most elements.
func newStaging(dev *snug.Device, chunk, most int) (*staging, error) {
	chunk = max(1, min(chunk, most))
	mover, err := offload.NewMover(dev, min(4*chunk, 1<<30), movedChunks)
	if err != nil {
		return nil, err
	}
	return &staging{mover: mover, grads: newAhead(mover, chunk), weights: newAhead(mover, chunk)}, nil
}

// begin starts to copy the gradients to the host.
func (s *staging) begin(params []param, gradient func(name string) (snug.View, error)) error {
	for _, p := range params {
		grad, err := gradient(p.name)
		if err != nil {
			return err
		}
		s.grads.add(grad)
	}
	return s.grads.begin()
}

func (s *staging) end() error { return s.grads.end() }

// gradient returns a copy of the next chunk of the gradients, valid until the next call.
func (s *staging) gradient(g snug.View) (snug.View, error) { return s.grads.next(g) }

// update calls step with a copy of each chunk of float32 weights, and writes the copy back.
func (s *staging) update(weights snug.View, step func(lo int, w snug.View) error) (err error) {
	defer func() { err = errors.Join(err, s.weights.end(), s.Wait()) }()
	s.weights.add(weights)
	if err := s.weights.begin(); err != nil {
		return err
	}
	for lo := 0; lo < weights.Len(); lo += s.weights.chunk {
		w, err := weights.Slice(lo, min(lo+s.weights.chunk, weights.Len()))
		if err != nil {
			return err
		}
		here, err := s.weights.next(w)
		if err != nil {
			return err
		}
		if err := step(lo, here); err != nil {
			return err
		}
		if err := s.Send(w, here); err != nil {
			return err
		}
	}
	return nil
}

// Send implements [amp.Sender].
func (s *staging) Send(dst, src snug.View) error {
	move, err := s.mover.Load(dst, src)
	if err == nil {
		s.sent = move
	}
	return err
}

// Wait implements [amp.Sender].
func (s *staging) Wait() error {
	sent := s.sent
	s.sent = offload.Move{}
	return sent.Wait()
}

// ahead copies vectors from a device to the host chunk by chunk, one chunk ahead of its use.
type ahead struct {
	mover   *offload.Mover
	chunk   int // elements
	vectors []snug.View
	at, lo  int // the vector, and its first element, that is copied next
	host    [2][]float32
	coming  offload.Move
	from    snug.View // the chunk that coming copies; empty after the last one
	turn    int       // of host, in which coming arrives
}

func newAhead(mover *offload.Mover, chunk int) ahead {
	return ahead{mover: mover, chunk: chunk, host: [2][]float32{make([]float32, chunk), make([]float32, chunk)}}
}

// add says that the chunks of v are used after those of earlier vectors. Nothing may change v until end.
func (a *ahead) add(v snug.View) { a.vectors = append(a.vectors, v) }

// begin starts the first copy.
func (a *ahead) begin() error { return a.start() }

// start starts the copy of the next chunk, if there is one.
func (a *ahead) start() (err error) {
	a.from = snug.View{}
	for a.at < len(a.vectors) && a.lo == a.vectors[a.at].Len() {
		a.at, a.lo = a.at+1, 0
	}
	if a.at == len(a.vectors) {
		return nil
	}
	v := a.vectors[a.at]
	hi := min(a.lo+a.chunk, v.Len())
	from, err := v.Slice(a.lo, hi)
	if err != nil {
		return err
	}
	if a.coming, err = a.mover.Save(snug.ViewOf(a.host[a.turn][:from.Len()]), from); err != nil {
		return err
	}
	a.from, a.lo = from, hi
	return nil
}

// next returns a copy of v, which is the next chunk, on the host. The copy is valid until the next call.
func (a *ahead) next(v snug.View) (snug.View, error) {
	if v.Len() != a.from.Len() || !device.Mem(&v).Same(*device.Mem(&a.from)) {
		return snug.View{}, fmt.Errorf("a chunk of %d elements is used, and another of %d is copied: %w", v.Len(), a.from.Len(), snug.ErrConfig)
	}
	here := snug.ViewOf(a.host[a.turn][:v.Len()])
	coming := a.coming
	a.coming = offload.Move{}
	if err := coming.Wait(); err != nil {
		return here, err
	}
	a.turn = 1 - a.turn
	return here, a.start()
}

// end waits for a copy that was not used, and forgets the vectors.
func (a *ahead) end() error {
	coming := a.coming
	clear(a.vectors)
	a.vectors, a.at, a.lo, a.coming, a.from = a.vectors[:0], 0, 0, offload.Move{}, snug.View{}
	return coming.Wait()
}

// close frees pinned memory.
func (s *staging) close() error { return s.mover.Close() }
