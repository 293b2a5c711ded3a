package attention

// This file has the query heads of one query as queries: those that read a key head meet its keys together, which are then read once.

// mostTogether is the most query heads whose products the processor computes together: more would leave other cores idle.
const mostTogether = 4

// together returns Options that compute the same for one query of each sequence on the processor, with some of the query heads that
// read a key head as queries of one head. It returns Options as they are where what a query sees depends on its number.
func (c *Options) together() Options {
	hides := c.Causal && (c.KLens != nil || c.cached()) || c.Window != (Window{})
	if hides || c.Sinks.X.Len() > 0 || c.Score != nil || c.KVHeads == 0 || c.Heads == 0 {
		return *c
	}
	group := c.Heads / c.KVHeads
	some := min(group, mostTogether)
	for group%some > 0 {
		some--
	}
	if some == 1 {
		return *c
	}
	return c.rowsOf(some)
}

// rowsOf takes some heads as the queries of one, a divisor of those that read a key head.
func (c *Options) rowsOf(some int) Options {
	r := *c
	if c.SeqQ != 1 || c.KVHeads == 0 || c.packed() || c.Slopes.Len() > 0 || c.Bias.X.Len() > 0 || c.Mask != nil || c.Dropout.P > 0 {
		return r
	}
	r.Heads, r.SeqQ, r.oneQuery = c.Heads/some, some, true
	r.Q = Strides{Batch: c.Q.Batch, Head: some * c.Q.Head, Row: c.Q.Head}
	r.Out = Strides{Batch: c.Out.Batch, Head: some * c.Out.Head, Row: c.Out.Head}
	if c.Causal && c.KLens == nil && c.Window == (Window{}) && !c.cached() {
		s := c.sequence(0)
		_, r.SeqK = s.keys(0)
		r.Causal = false
	}
	return r
}
