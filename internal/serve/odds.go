package serve

import (
	"math"
)

// mostLikely returns a token and the top most likely ones, the most likely first, with their log-probabilities: the logits z less
// lse = max + ln Σ exp(z−max). A temperature does not change them.
func mostLikely(logits []float32, token int32, top int) []likely {
	max, sumExp := float32(math.Inf(-1)), 0.0
	for _, z := range logits {
		if z > max {
			max = z
		}
	}
	for _, z := range logits {
		sumExp += math.Exp(float64(z) - float64(max))
	}
	lse := float64(max) + math.Log(sumExp)
	list := []likely{{token, float64(logits[token]) - lse}}
	for i, z := range logits {
		if n := len(list) - 1; n == top && (top == 0 || float64(z)-lse <= list[n].logprob) {
			continue
		}
		list = append(list, likely{int32(i), float64(z) - lse})
		for at := len(list) - 1; at > 1 && list[at].logprob > list[at-1].logprob; at-- {
			list[at], list[at-1] = list[at-1], list[at]
		}
		if len(list) > top+1 {
			list = list[:top+1]
		}
	}
	return list
}
