package transformer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/philox"
)

// Sampling says how a token is chosen from the logits. The zero value takes the most likely one.
//
// The fields apply in their order, as in transformers: Temperature divides the logits, then TopK keeps the most likely
// tokens, then TopP keeps the most likely of these.
type Sampling struct {
	Temperature float32 // divides the logits; 0 takes the most likely token and ignores the rest
	TopK        int     // number of most likely tokens to keep, and those as likely as the last of them; 0 is all
	// TopP, below 1, keeps the smallest set of most likely tokens whose probabilities add up to at least TopP (nucleus
	// sampling, Holtzman et al. 2020, arXiv:1904.09751); 0 is 1, all.
	TopP float32
	// Seed of the random numbers. A token depends on Seed, its position and the logits alone: for several answers to one
	// prompt, give each a seed of its own.
	Seed uint64
}

func (s Sampling) check() error {
	switch {
	case !(s.Temperature >= 0 && s.Temperature <= math.MaxFloat32):
		return fmt.Errorf("the option Temperature is %v, want 0 or more: %w", s.Temperature, snug.ErrConfig)
	case s.TopK < 0:
		return fmt.Errorf("the option TopK is %d, want 0 or more: %w", s.TopK, snug.ErrConfig)
	case !(s.TopP >= 0 && s.TopP <= 1):
		return fmt.Errorf("the option TopP is %v, want 0 to 1: %w", s.TopP, snug.ErrConfig)
	}
	return nil
}

// sampler chooses tokens.
type sampler struct {
	Sampling
	weights []float64 // of tokens, not normalized; 0 for those that are filtered out
	kept    []int32   // tokens that the filters keep
	words   [2]uint32 // the random number of a position
}

func newSampler(s Sampling, vocab int) *sampler {
	p := &sampler{Sampling: s}
	if s.Temperature > 0 {
		p.weights, p.kept = make([]float64, vocab), make([]int32, 0, vocab)
	}
	return p
}

// next chooses a token for a position.
func (s *sampler) next(logits []float32, position int) (int32, error) {
	best := 0
	for i, z := range logits {
		if z != z || z > math.MaxFloat32 {
			return 0, fmt.Errorf("the logit of token %d is %v: %w", i, z, snug.ErrNonFinite)
		}
		if z > logits[best] {
			best = i
		}
	}
	if s.Temperature == 0 {
		return int32(best), nil
	}
	sum := s.weigh(logits, logits[best])
	philox.Stream{Seed: s.Seed}.Words(s.words[:], 2*uint64(position))
	at := sum * float64(uint64(s.words[0])<<21|uint64(s.words[1])>>11) / (1 << 53)
	last := int32(best)
	for _, i := range s.kept {
		last = i
		if at -= s.weights[i]; at < 0 {
			break
		}
	}
	return last, nil
}

// weigh fills weights and kept, in the order of tokens, and returns the sum of the weights.
func (s *sampler) weigh(logits []float32, largest float32) (sum float64) {
	temperature, most := float64(s.Temperature), float64(largest)
	s.kept = s.kept[:0]
	least := s.threshold(logits)
	for i, z := range logits {
		s.weights[i] = 0
		if z < least {
			continue
		}
		w := math.Exp((float64(z) - most) / temperature)
		s.weights[i] = w
		sum += w
		s.kept = append(s.kept, int32(i))
	}
	if s.TopP > 0 && s.TopP < 1 {
		sum = s.nucleus(sum)
	}
	return sum
}

// threshold returns the smallest logit that TopK keeps.
func (s *sampler) threshold(logits []float32) float32 {
	if s.TopK == 0 || s.TopK >= len(logits) {
		return float32(math.Inf(-1))
	}
	heap := s.kept[:0] // of the largest so far, the smallest of them first
	for i, z := range logits {
		if len(heap) < s.TopK {
			heap = append(heap, int32(i))
			for c := len(heap) - 1; c > 0 && logits[heap[c]] < logits[heap[(c-1)/2]]; c = (c - 1) / 2 {
				heap[c], heap[(c-1)/2] = heap[(c-1)/2], heap[c]
			}
		} else if z > logits[heap[0]] {
			heap[0] = int32(i)
			sink(heap, logits)
		}
	}
	return logits[heap[0]]
}

// sink restores the order of a heap whose root was replaced.
func sink(heap []int32, logits []float32) {
	for at := 0; ; {
		child := 2*at + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && logits[heap[child+1]] < logits[heap[child]] {
			child++
		}
		if logits[heap[at]] <= logits[heap[child]] {
			return
		}
		heap[at], heap[child] = heap[child], heap[at]
		at = child
	}
}

// nucleus keeps the smallest set of most likely tokens whose weights add up to TopP of the sum, and returns the sum of
// their weights.
func (s *sampler) nucleus(sum float64) float64 {
	rest := (1 - float64(s.TopP)) * sum // largest weight of the removed tokens together
	few := rest / float64(len(s.kept))  // tokens up to this weight are all removed, without sorting
	likely := s.kept[:0]
	for _, i := range s.kept {
		if s.weights[i] > few {
			likely = append(likely, i)
		} else {
			rest -= s.weights[i]
			sum -= s.weights[i]
			s.weights[i] = 0
		}
	}
	slices.SortFunc(likely, func(a, b int32) int {
		return cmp.Or(cmp.Compare(s.weights[b], s.weights[a]), cmp.Compare(a, b))
	})
	for n := len(likely) - 1; n > 0; n-- { // the most likely token stays
		w := s.weights[likely[n]]
		if rest -= w; rest < 0 {
			break
		}
		likely, s.weights[likely[n]] = likely[:n], 0
		sum -= w
	}
	slices.Sort(likely)
	s.kept = likely
	return sum
}
