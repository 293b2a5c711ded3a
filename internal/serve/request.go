package serve

import (
	"encoding/json"
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug/transformer"
)

// request is a request that was read.
type request struct {
	model    *served
	prompt   []int32
	most     int // tokens of the answer
	sampling transformer.Sampling
	repeats  bool
	stops    []string
	top      int // below 0: no log-probabilities
	stream   bool
	usage    bool // a last event of the stream has it
	chat     bool
}

// The most stops of a request, and the most bytes of one.
const maxStops, maxStop = 16, 1000

// readRequest reads what chats and completions have in common, after the prompt. standard is the number of tokens of an answer where the
// request says none, 0 for as many as there is room for.
func (s *Server) readRequest(f fields, r *request, standard int64) *failure {
	if fault := r.readStops(f); fault != nil {
		return fault
	}
	if fault := r.readSampling(f); fault != nil {
		return fault
	}
	if _, fault := f.take("stream", &r.stream, "true or false"); fault != nil {
		return fault
	}
	var options fields
	given, fault := f.take("stream_options", &options, "an object")
	if fault != nil {
		return fault
	}
	if given && !r.stream {
		return refuse("stream_options", "stream_options is for stream: true")
	}
	if _, fault := options.take("include_usage", &r.usage, "true or false"); fault != nil {
		return fault
	}
	delete(options, "include_obfuscation") // which pads events, and is not done
	if fault := options.rest(); fault != nil {
		return fault
	}
	most, given, fault := f.count("max_tokens", standard, 1, math.MaxInt64)
	if r.chat && fault == nil {
		var newer int64
		var also bool
		if newer, also, fault = f.count("max_completion_tokens", most, 1, math.MaxInt64); also {
			if given && newer != most {
				return refuse("max_tokens", "max_tokens is %d and max_completion_tokens %d, want one of them", most, newer)
			}
			most = newer
		}
	}
	if fault != nil {
		return fault
	}
	if fault := f.rest(); fault != nil {
		return fault
	}
	return s.fit(r, most)
}

// fit sets the number of tokens of the answer.
func (s *Server) fit(r *request, most int64) *failure {
	context := int64(s.o.Context)
	if c := &r.model.family; c.LearnedPositions {
		context = min(context, int64(c.Context))
	}
	left := context - int64(len(r.prompt))
	param := "prompt"
	if r.chat {
		param = "messages"
	}
	if len(r.prompt) == 0 {
		return refuse(param, "the prompt has no tokens")
	}
	if most == 0 {
		most = left
	}
	if left < 1 || most > left {
		f := refuse(param, "the prompt has %d tokens and the answer up to %d, and the context of the server has %d", len(r.prompt), max(most, 1), context)
		f.code = "context_length_exceeded"
		return f
	}
	r.most = int(most)
	return nil
}

// readStops reads the texts that stop the answer.
func (r *request) readStops(f fields) *failure {
	var raw json.RawMessage
	if found, _ := f.take("stop", &raw, ""); !found {
		return nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		r.stops = []string{one}
	} else if json.Unmarshal(raw, &r.stops) != nil {
		return refuse("stop", "stop is %.60s, want a text or a list of texts", raw)
	}
	if len(r.stops) > maxStops {
		return refuse("stop", "stop has %d texts, want up to %d", len(r.stops), maxStops)
	}
	for _, stop := range r.stops {
		if stop == "" || len(stop) > maxStop {
			return refuse("stop", "a text of stop has %d bytes, want 1 to %d", len(stop), maxStop)
		}
	}
	return nil
}

// readSampling reads how tokens are chosen. The protocol's temperature is 1 if the request has none.
func (r *request) readSampling(f fields) *failure {
	temperature, fault := f.number("temperature", 1, 0, 2)
	if fault != nil {
		return fault
	}
	topP, fault := f.number("top_p", 1, 0, 1)
	if fault != nil {
		return fault
	}
	topK, _, fault := f.count("top_k", 0, -1, math.MaxInt32) // -1 and 0 are all
	if fault != nil {
		return fault
	}
	var seed json.Number
	seeded, fault := f.take("seed", &seed, "a whole number")
	if fault != nil {
		return fault
	}
	r.sampling = transformer.Sampling{Temperature: float32(temperature), TopK: int(max(topK, 0)), TopP: float32(topP), Seed: rand.Uint64()}
	if r.sampling.TopP == 0 { // which package transformer takes for all
		r.sampling.TopP = math.SmallestNonzeroFloat32
	}
	if seeded {
		n, err := seed.Int64()
		if err != nil {
			return refuse("seed", "seed is %.40s, want a whole number of 64 bits", seed)
		}
		r.sampling.Seed = uint64(n)
	}
	if temperature > 0 && r.sampling.Temperature == 0 {
		r.sampling.Temperature = math.SmallestNonzeroFloat32
	}
	r.repeats = seeded || r.sampling.Temperature == 0
	return nil
}
