package serve

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPassEnds(t *testing.T) {
	var ends []int
	for at := 0; at < 900; {
		at = passEnd(at)
		ends = append(ends, at)
	}
	require.Equal(t, []int{64, 128, 256, 512, 768, 1024}, ends)
	for tokens, want := range map[int]int{0: 0, 63: 0, 64: 64, 127: 64, 255: 128, 256: 256, 511: 256, 512: 512, 1000: 768} {
		require.Equal(t, want, wholePasses(tokens), "%d tokens", tokens)
	}
}

// asked returns a request with log-probabilities, which have the bits of the logits.
func asked(prompt string) string {
	return fmt.Sprintf(`{"prompt": "%s", "max_tokens": 12, "seed": 5, "logprobs": 3}`, prompt)
}

// Requests that begin alike compute their beginning once, and get the answers, to the last bit, of a server that computes all.
func TestPrefixIsKept(t *testing.T) {
	system := strings.Repeat("You are a helpful fox. ", 17)[:384] // passes end at 64, 128, 256 and 512 tokens
	s, h := start(t, Options{Context: 900})
	for _, c := range []struct {
		name, prompt string
		kept         int
	}{
		{"first", system + "What is a hen?", 0},
		{"again", system + "What is a hen?", 256},
		{"another question", system + "And what is a fence, at length?", 256},
		{"shorter", system[:300], 256},
		{"whose last token is computed", system[:256], 128},
		{"another end", system[:140] + "something else", 128},
		{"one pass", system[:70], 64},
		{"one pass and nothing behind it", system[:64], 0},
		{"another beginning", "X" + system, 0},
		{"longer", system + strings.Repeat("more ", 60), 256},
		{"longer, again", system + strings.Repeat("more ", 60) + "and", 512},
		{"no longer kept by itself", system, 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, fresh := start(t, Options{Context: 900})
			want := ask(t, fresh, "/v1/completions", asked(c.prompt))
			require.Zero(t, want.Usage.Details.Cached)
			before := s.batch.rows.Load()
			got := ask(t, h, "/v1/completions", asked(c.prompt))
			require.Equal(t, c.kept, got.Usage.Details.Cached)
			require.EqualValues(t, len(c.prompt)-1-c.kept, s.batch.rows.Load()-before, "rows that were computed")
			require.Equal(t, want.Choices, got.Choices)
		})
	}
	events := stream(t, h, "/v1/completions", strings.Replace(asked(system), "{", `{"stream": true, "stream_options": {"include_usage": true}, `, 1))
	require.Equal(t, 256, events[len(events)-1].Usage.Details.Cached)
}

// Requests that come together compute their beginning once, too, and models have beginnings of their own.
func TestPrefixTogether(t *testing.T) {
	s, h := start(t, Options{Models: []Model{newModel(t, "base", 1), newModel(t, "other", 2)}, Rows: 4})
	system := strings.Repeat("0123456789", 13)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			body := fmt.Sprintf(`{"model": "%s", "prompt": "%s%d", "max_tokens": 3}`, []string{"base", "other"}[i%2], system, i)
			status, text := post(t, h, "/v1/completions", body)
			require.Equal(t, 200, status, "%s", text)
		})
	}
	all.Wait()
	require.EqualValues(t, 2*128+8*2, s.batch.rows.Load())
}

// What is kept stays within the memory for caches, makes room for requests, and is dropped by its last use.
func TestPrefixMemory(t *testing.T) {
	m := newModel(t, "base", 1)
	one, err := m.Model.CacheBytes(CacheOptions(150))
	require.NoError(t, err)
	kept := m.Model.PrefixBytes(128)
	s, h := start(t, Options{Models: []Model{m}, Context: 150, Memory: one + 2*kept})
	text := func(letter string) string { return strings.Repeat(letter, 140) }
	cached := func(letter string) int {
		n := ask(t, h, "/v1/completions", fmt.Sprintf(`{"prompt": "%s", "max_tokens": 10}`, text(letter))).Usage.Details.Cached
		require.LessOrEqual(t, s.batch.kept.bytes.Load(), 2*kept)
		return n
	}
	for _, c := range []struct {
		letter string
		want   int
	}{{"a", 0}, {"b", 0}, {"a", 128}, {"c", 0}, {"a", 128}, {"b", 0}, {"c", 0}} { // b was dropped for c, as a was used later, then c for b
		require.Equal(t, c.want, cached(c.letter), c.letter)
	}
	var all sync.WaitGroup // two at a time want the room of what is kept
	for range 6 {
		all.Go(func() { post(t, h, "/v1/completions", fmt.Sprintf(`{"prompt": "%s", "max_tokens": 10}`, text("d"))) })
	}
	all.Wait()
	s.Drain()
	eventually(t, func() bool { return s.batch.kept.bytes.Load() == 0 })
}
