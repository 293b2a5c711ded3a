package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// unigram is the model of Kudo, "Subword Regularization: Improving Neural Network Translation Models with Multiple Subword
// Candidates", 2018. Each token has a score, the logarithm of its probability, and of all ways to write a word as tokens the one
// with the highest sum is taken. It is found from the front, by the algorithm of Viterbi:
//
//	best[0] = 0
//	best[end] = max over tokens of (best[end - length of token] + score of token)
//
// Where no token is a character, the unknown token stands for it, with a score below that of all others. Of equal sums the one that
// is found first stays: tokens that begin further in front, then shorter ones. Sums round, so that this depends on the
// precision and on all of the word before: float64 as in the library tokenizers, float32 as in SentencePiece.
type unigram struct {
	ids     map[string]int32
	trie    *trie
	scores  []float64
	unknown int32   // its id, -1 for none
	least   float64 // the score of the unknown token
	bytes   *[256]int32
	single  bool // sums are float32
	borders bool // a text is one word, and no token reaches over the front of a ▁
	cache   *cache
}

// unknownPenalty is how much lower than that of all tokens the score of the unknown token is.
const unknownPenalty = 10

// scoredFile is a token and its score.
type scoredFile struct {
	token string
	score float64
}

func (s *scoredFile) UnmarshalJSON(text []byte) error {
	var list []json.RawMessage
	if json.Unmarshal(text, &list) != nil || len(list) != 2 || json.Unmarshal(list[0], &s.token) != nil || list[0][0] != '"' ||
		json.Unmarshal(list[1], &s.score) != nil || list[1][0] == 'n' {
		return fmt.Errorf("%.100q, want a token and its score", text)
	}
	s.score = peerFloat(string(list[1]))
	return nil
}

// peerFloat is a number of JSON as the peer reads it, whose reader rounds twice: the digits as an integer of 64 bits, and the quotient
// or product with a power of 10. Equal sums of scores depend on the last bit.
func peerFloat(text string) float64 {
	text, negative := strings.CutPrefix(text, "-")
	digits, exponent, full, point := uint64(0), 0, false, false
	for i := range len(text) {
		c := text[i]
		if c == '.' {
			point = true
			continue
		}
		if c < '0' || c > '9' { // e or E
			n, err := strconv.Atoi(strings.TrimPrefix(text[i+1:], "+"))
			if err != nil || n > 1<<20 {
				n = 1 << 20
			}
			exponent += max(n, -1<<20)
			break
		}
		full = full || digits > (math.MaxUint64-uint64(c-'0'))/10
		switch {
		case !full && point:
			exponent--
		case full && !point:
			exponent++
		}
		if !full {
			digits = digits*10 + uint64(c-'0')
		}
	}
	f := float64(digits)
	for ; exponent < -308 && f != 0; exponent += 308 {
		f /= 1e308
	}
	if exponent < 0 {
		f /= math.Pow10(-max(exponent, -308))
	} else if f != 0 {
		f *= math.Pow10(min(exponent, 309))
	}
	if negative {
		f = -f
	}
	return f
}

// unigramFile is a model of type Unigram.
type unigramFile struct {
	Type         string       `json:"type,omitempty"`
	Unknown      *uint32      `json:"unk_id,omitempty"`
	Vocab        []scoredFile `json:"vocab"`
	ByteFallback *bool        `json:"byte_fallback,omitempty"`
	FuseUnknown  *bool        `json:"fuse_unk,omitempty"` // the peer fuses always
	Alpha        *float64     `json:"alpha,omitempty"`
	Best         *uint32      `json:"nbest_size,omitempty"`
}

func init() {
	modelKinds["Unigram"] = modelKind{func() modelSource { return new(unigramFile) }, []string{"vocab", "unk_id"}, 4}
}

func (f *unigramFile) make(t *Tokenizer) (model, error) {
	if f.Alpha != nil || f.Best != nil {
		return nil, refused("alpha and nbest_size: tokens would be random")
	}
	m := &unigram{ids: make(map[string]int32, len(f.Vocab)), scores: make([]float64, len(f.Vocab)), unknown: -1, cache: newCache()}
	if f.Unknown != nil {
		if int64(*f.Unknown) >= int64(len(f.Vocab)) {
			return nil, damaged("unk_id %d of %d tokens", *f.Unknown, len(f.Vocab))
		}
		m.unknown = int32(*f.Unknown)
	}
	m.least = math.Inf(1)
	tokens := make([]keyed, len(f.Vocab))
	for id, s := range f.Vocab {
		if len(s.token) > maxPiece {
			return nil, refused("vocab: %.40q has %d bytes, want %d at most", s.token, len(s.token), maxPiece)
		}
		tokens[id] = keyed{s.token, int32(id)}
		m.ids[s.token] = int32(id) // of a token that comes twice the last one counts, as for the peer
		m.scores[id] = s.score
		m.least = min(m.least, s.score)
		t.name(int32(id), s.token, s.token)
	}
	m.least -= unknownPenalty
	m.trie = newTrie(tokens)
	if isSet(f.ByteFallback) {
		m.bytes = byteTokens(m.id)
	}
	return m, nil
}

func (m *unigram) id(token string) (int32, bool) {
	id, ok := m.ids[token]
	return id, ok
}

func (m *unigram) size() int { return len(m.scores) }

func (m *unigram) encode(dst []int32, p piece) ([]int32, error) {
	if p.text == "" {
		return dst, nil
	}
	if p.sum != nil && m.borders {
		if !p.inner {
			*p.sum = 0
		}
		return m.word(dst, spelled(p), p.sum)
	}
	return m.cache.cached(dst, p.text, false, func(dst []int32) ([]int32, error) { return m.word(dst, spelled(p), new(float64)) })
}

func (m *unigram) long(p piece, emit func(ids []int32) error) error { return encodeWhole(m, p, emit) }

// apart: sums round by what comes before, so that words are cut only where the sum goes on.
func (m *unigram) apart(h halves) bool {
	return m.borders && strings.HasPrefix(h.right.text, blank)
}

// reached is the best way to a place of a word.
type reached struct {
	sum  float64
	from int32 // where the last token begins, -1 if nothing ends here
	id   int32
}

// paths is the memory of a search.
type paths struct{ places []reached }

var pathPool = sync.Pool{New: func() any { return new(paths) }}

// word appends the tokens of a word, and adds its sum to that of what comes before.
func (m *unigram) word(dst []int32, word string, sum *float64) ([]int32, error) {
	if len(word) > maxText {
		return dst, fmt.Errorf("a word of %d bytes after the normalizer, want %d at most", len(word), maxText)
	}
	p := pathPool.Get().(*paths)
	defer pathPool.Put(p)
	if cap(p.places) < len(word)+1 {
		p.places = make([]reached, len(word)+1)
	}
	p.places = p.places[:len(word)+1]
	defer func() {
		if cap(p.places) > longWord {
			p.places = nil
		}
	}()
	for i := range p.places {
		p.places[i] = reached{from: -1}
	}
	p.places[0].sum = *sum
	if err := m.search(p.places, word); err != nil {
		return dst, err
	}
	*sum = p.places[len(word)].sum
	return m.collect(dst, p.places, word)
}

// search finds the best ways to all places of a word.
func (m *unigram) search(places []reached, word string) error {
	for at := 0; at < len(word); {
		char := firstSize(word[at:])
		till, alone := places[at].sum, false
		for node, end := uint32(0), at; end < len(word); {
			if node = m.trie.next(node, word[end]); node == 0 {
				break
			}
			end++
			id := m.trie.value[node]
			if id < 0 {
				continue
			}
			if to, sum := &places[end], m.rounded(m.scores[id]+till); to.from < 0 || sum > to.sum {
				*to = reached{sum, int32(at), id}
			}
			alone = alone || end-at == char
		}
		if !alone {
			if m.unknown < 0 {
				return fmt.Errorf("no token for %+q, and no unknown token", word[at:at+char])
			}
			if to, sum := &places[at+char], m.rounded(m.least+till); to.from < 0 || sum > to.sum {
				*to = reached{sum, int32(at), m.unknown}
			}
		}
		at += char
	}
	return nil
}

func (m *unigram) rounded(sum float64) float64 {
	if m.single {
		return float64(float32(sum))
	}
	return sum
}

// collect appends the tokens of the best way. Unknown characters in a row are one token, or the tokens of their bytes.
func (m *unigram) collect(dst []int32, places []reached, word string) ([]int32, error) {
	n := 0 // tokens from the back, in the front of places, where nobody looks any more
	for at := len(word); at > 0; {
		step := places[at]
		at = int(step.from)
		if n > 0 && step.id == m.unknown && places[len(places)-n].id == m.unknown {
			places[len(places)-n].from = step.from
			continue
		}
		n++
		places[len(places)-n] = step
	}
	way := places[len(places)-n:]
	for i, step := range way {
		if step.id != m.unknown {
			dst = append(dst, step.id)
			continue
		}
		end := len(word)
		if i+1 < len(way) {
			end = int(way[i+1].from)
		}
		dst = m.unknowns(dst, word[step.from:end])
	}
	return dst, nil
}

// unknowns appends the tokens of characters that no tokens stand for.
func (m *unigram) unknowns(dst []int32, text string) []int32 {
	if id, ok := m.ids[text]; ok && !m.single { // the peer looks up what it has joined
		return append(dst, id)
	}
	if m.bytes == nil {
		return append(dst, m.unknown)
	}
	for i := range len(text) {
		if m.bytes[text[i]] < 0 {
			return append(dst, m.unknown)
		}
	}
	for i := range len(text) {
		dst = append(dst, m.bytes[text[i]])
	}
	return dst
}

func (m *unigram) span(token string, id int32, word piece, at int, last bool) int {
	rest := word.text[at:]
	switch {
	case last:
		return len(rest)
	case word.raw:
		return utf8.RuneCountInString(token)
	case strings.HasPrefix(rest, token):
		return len(token)
	case m.bytes != nil && m.bytes[rest[0]] == id:
		return 1
	}
	return 0
}
