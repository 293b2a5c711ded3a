package main

import "fmt"

// tuned is what tuning took in snug and in the peer.
type tuned struct {
	Method string `json:"method"`
	Tokens int    `json:"tokens"` // of a step
	Limit  int64  `json:"limit_rss_bytes,omitempty"`
	// Longest is the most tokens, a multiple of the model's, that snug is predicted to fit in Limit.
	Longest int        `json:"longest_predicted,omitempty"`
	Own     tunedSide  `json:"snug"`
	Peer    *tunedSide `json:"peer"` // null where there is none

	Speed  *quartiles `json:"speed_ratio"` // tokens a second, snug's over the peer's, run by run
	Memory *quartiles `json:"rss_ratio"`   // peak RSS, snug's over the peer's, run by run
}

// tunedSide is what a side took. Bytes are of the run that took most.
type tunedSide struct {
	Speed     quartiles `json:"tokens_per_s"` // over all runs
	Loss      float64   `json:"first_loss"`
	Base      int64     `json:"base_rss_bytes"` // before there is a model
	Loaded    int64     `json:"loaded_rss_bytes"`
	Peak      int64     `json:"peak_rss_bytes"`
	Mapped    int64     `json:"mapped_rss_bytes,omitempty"` // pages of files, such as of weights and libraries
	Counted   int64     `json:"counted_bytes,omitempty"`
	Predicted int64     `json:"predicted_rss_bytes,omitempty"`
}

// quartiles are of samples.
type quartiles struct {
	Low    float64 `json:"q1"`
	Median float64 `json:"median"`
	High   float64 `json:"q3"`
}

func newQuartiles(samples []float64) quartiles {
	return quartiles{quantile(samples, 0.25), median(samples), quantile(samples, 0.75)}
}

// newTuned joins the reports of both sides; peer may be nil or have none.
func newTuned(j tuneJob, own, peer *tuneSide) *tuned {
	t := &tuned{Method: j.Method, Tokens: j.Tokens, Limit: j.Limit, Own: own.summary(j.Tokens)}
	if peer == nil || len(peer.reports) == 0 {
		return t
	}
	s := peer.summary(j.Tokens)
	t.Peer = &s
	var speed, memory []float64
	for i, p := range peer.reports {
		o := own.reports[i]
		speed = append(speed, median(p.Seconds)/median(o.Seconds))
		memory = append(memory, float64(o.Peak)/float64(p.Peak))
	}
	faster, smaller := newQuartiles(speed), newQuartiles(memory)
	t.Speed, t.Memory = &faster, &smaller
	return t
}

func (s *tuneSide) summary(tokens int) (t tunedSide) {
	var rates []float64
	for _, r := range s.reports {
		rates = append(rates, float64(tokens)/median(r.Seconds))
		t.Base = max(t.Base, r.Base)
		t.Loaded, t.Peak = max(t.Loaded, r.Loaded), max(t.Peak, r.Peak)
		t.Mapped = max(t.Mapped, r.Mapped)
		t.Counted, t.Predicted = max(t.Counted, r.Counted), max(t.Predicted, r.Predicted)
	}
	t.Speed, t.Loss = newQuartiles(rates), s.reports[0].Loss
	return t
}

func (t *tuned) peerPeak() int64 {
	if t.Peer == nil {
		return 0
	}
	return t.Peer.Peak
}

const tuneColumns = "  %-13s %9s %17s %12s %12s %12s %12s %12s %12s %10s"

// lines follow the row.
func (t *tuned) lines() []string {
	all := []string{
		fmt.Sprintf(tuneColumns, "", "tokens/s", "quartiles", "RSS before", "RSS loaded", "peak RSS", "files mapped", "counted", "predicted", "first loss"),
		t.Own.line("snug"),
	}
	if t.Peer != nil {
		all = append(all, t.Peer.line(transformers),
			fmt.Sprintf(tuneColumns, "snug/peer", times(t.Speed.Median), t.Speed.between(), "", "", times(t.Memory.Median), "", "", "", "")+
				"  quartiles of peak RSS "+t.Memory.between())
	}
	if t.Limit > 0 {
		all = append(all, "  of "+bytesText(t.Limit)+": snug "+within(t.Own.Peak, t.Limit))
		if t.Peer != nil {
			all[len(all)-1] += ", " + transformers + " " + within(t.Peer.Peak, t.Limit)
		}
		all[len(all)-1] += fmt.Sprintf("; snug is predicted to fit %d tokens", t.Longest)
	}
	return all
}

func (s *tunedSide) line(name string) string {
	size := func(n int64) string {
		if n == 0 {
			return "–"
		}
		return bytesText(n)
	}
	return fmt.Sprintf(tuneColumns, name, number(s.Speed.Median), s.Speed.between(), size(s.Base), size(s.Loaded), size(s.Peak),
		size(s.Mapped), size(s.Counted), size(s.Predicted), fmt.Sprintf("%.4f", s.Loss))
}

func (q quartiles) between() string { return number(q.Low) + "–" + number(q.High) }

// number formats a number with three digits or more.
func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func times(x float64) string { return number(x) + "×" }

// within says how a peak compares with a limit.
func within(peak, limit int64) string {
	if peak <= limit {
		return "fits"
	}
	return "takes " + bytesText(peak-limit) + " more"
}
