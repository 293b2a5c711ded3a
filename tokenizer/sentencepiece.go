package tokenizer

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/files"
)

// The kinds of pieces of SentencePiece's models, by their numbers in the file.
const (
	pieceNormal = 1 + iota
	pieceUnknown
	pieceControl
	pieceUser
	pieceUnused
	pieceByte
)

// spPiece is a token of SentencePiece's.
type spPiece struct {
	text  string
	score float32
	kind  uint64
}

// spModel is a tokenizer.model of SentencePiece: Kudo and Richardson, "SentencePiece: A simple and language independent subword
// tokenizer and detokenizer for Neural Text Processing", 2018. The file is a ModelProto of sentencepiece_model.proto.
type spModel struct {
	pieces   []spPiece
	bpe      bool
	fallback bool
	named    map[string]int64 // ids of the tokens with names, -1 for none
	spaces   spSpaces
}

func init() {
	addForm(form{order: 2, files: [][]string{{"tokenizer.model"}}, open: openSentencePiece})
}

// spClass is a class of transformers that reads any tokenizer.model. legacy and begins are what it does where
// tokenizer_config.json has no key "legacy", and no "add_bos_token": a space in front of each text, and BOS.
type spClass struct{ legacy, begins bool }

// spClasses are the classes by their names, as of transformers 5.24.
var spClasses = map[string]spClass{
	"": {legacy: true}, "PreTrainedTokenizer": {legacy: true}, "TokenizersBackend": {legacy: true},
	"LlamaTokenizer": {}, "CodeLlamaTokenizer": {begins: true}, "GemmaTokenizer": {legacy: true},
}

// openSentencePiece builds the tokenizer of tokenizer.model.
func openSentencePiece(folder string, names []string, c *Config, f configFile) (*Tokenizer, error) {
	path := filepath.Join(folder, names[0])
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	if isTiktoken(data) { // another kind of files that has the same name
		return openTiktoken(folder, names, c, f)
	}
	t, err := readSentencePiece(data, folder, c, f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

func readSentencePiece(data []byte, folder string, c *Config, f configFile) (*Tokenizer, error) {
	m, err := parseSentencePiece(data)
	if err != nil {
		return nil, err
	}
	class, known := spClasses[f.class()]
	if c.AddBOS == nil && c.AddEOS == nil && !known {
		return nil, refused("tokenizer_config.json names the class %.60s and neither add_bos_token nor add_eos_token: write these into it", f.class())
	}
	if c.AddBOS == nil && class.begins {
		c.AddBOS = &class.begins
	}
	if err := m.rename(f.Decoder); err != nil {
		return nil, err
	}
	m.spaces.always = class.legacy || !known
	if f.Legacy != nil {
		m.spaces.always = *f.Legacy
	}
	ids := make(map[string]uint32, len(m.pieces))
	file := &file{Model: modelPart{m}}
	for id, p := range m.pieces {
		ids[p.text] = uint32(id)
		if p.kind == pieceUnknown || p.kind == pieceControl {
			file.AddedTokens = append(file.AddedTokens, addedFile{ID: uint32(id), Content: p.text, Special: true})
		}
	}
	var standard []SpecialToken
	for _, name := range standardTokens {
		if id, has := m.named[name]; has && id >= 0 && id < int64(len(m.pieces)) {
			standard = append(standard, SpecialToken{name, m.pieces[id].text})
		}
	}
	c.standard(standard, f, nil)
	own := file.AddedTokens
	file.AddedTokens = nil
	if err := file.addTokens(folder, c, f, func(token string) (uint32, bool) {
		id, ok := ids[token]
		return id, ok
	}, len(m.pieces)); err != nil {
		return nil, err
	}
	for _, a := range file.AddedTokens { // a special token is never text, although its author has defined it as a piece
		if a.Special && int64(a.ID) < int64(len(m.pieces)) && m.pieces[a.ID].kind == pieceUser {
			m.pieces[a.ID].kind = pieceControl
		}
	}
	for _, a := range own {
		if !slices.ContainsFunc(file.AddedTokens, func(b addedFile) bool { return a.ID == b.ID }) {
			file.AddedTokens = append(file.AddedTokens, a)
		}
	}
	slices.SortStableFunc(file.AddedTokens, func(a, b addedFile) int { return cmp.Compare(a.ID, b.ID) })
	file.AddedTokens = slices.DeleteFunc(file.AddedTokens, func(a addedFile) bool { // the model finds those of its own
		return int64(a.ID) < int64(len(m.pieces)) && m.pieces[a.ID].kind == pieceUser
	})
	for i := range file.AddedTokens {
		file.AddedTokens[i].Normalized = false // the text around a token has spaces of its own
	}
	t, err := file.build()
	if err != nil {
		return nil, err
	}
	t.normalizer = normalizers{m.spaces}
	if err := growth([]normalizer{m.spaces}); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	t.decode, t.noDecoder = []decoder{spDecoder{front: m.spaces.prefix || m.spaces.extra, all: m.spaces.extra, bytes: m.fallback}}, false
	return t, nil
}

// rename gives pieces the names of the added tokens with their ids, all at once: two pieces may change names. A piece that is not
// among them keeps its name, which no other gets.
func (m *spModel) rename(tokens map[string]tokenFile) error {
	names := make(map[int]string, len(tokens))
	for id, token := range tokens {
		n, err := strconv.ParseUint(id, 10, 31)
		if err != nil {
			return damaged("tokenizer_config.json: added_tokens_decoder has the id %.40q", id)
		}
		if int(n) < len(m.pieces) {
			names[int(n)] = token.Content
		}
	}
	if len(names) == 0 {
		return nil
	}
	kept := make(map[string]bool, len(m.pieces))
	for id, p := range m.pieces {
		if _, named := names[id]; !named {
			kept[p.text] = true
		}
	}
	for id, name := range names {
		p := &m.pieces[id]
		if p.text == name || kept[name] {
			continue
		}
		p.text = name
		if p.kind == pieceNormal || p.kind == pieceUnused {
			p.kind = pieceControl
		}
	}
	return nil
}

// make makes the model.
func (m *spModel) make(t *Tokenizer) (model, error) {
	ids := make(map[string]int32, len(m.pieces))
	unknown := int32(-1)
	for id, p := range m.pieces {
		if _, twice := ids[p.text]; twice || p.text == "" || !utf8.ValidString(p.text) || len(p.text) > maxPiece {
			return nil, damaged("piece %d is %.100q, want up to %d bytes of UTF-8 that no other piece has", id, p.text, maxPiece)
		}
		if math.IsNaN(float64(p.score)) || math.IsInf(float64(p.score), 0) {
			return nil, damaged("the score of piece %d is %v, want a finite number", id, p.score)
		}
		ids[p.text] = int32(id)
		t.name(int32(id), p.text, p.text)
		if p.kind == pieceUnknown {
			if unknown >= 0 {
				return nil, damaged("pieces %d and %d are both unknown tokens", unknown, id)
			}
			unknown = int32(id)
		}
	}
	var err error
	if m.spaces.user, err = m.userPieces(); err != nil {
		return nil, err
	}
	if unknown < 0 {
		return nil, damaged("no piece is the unknown token")
	}
	var bytes *[256]int32
	if m.fallback {
		bytes = byteTokens(func(token string) (int32, bool) {
			id, ok := ids[token]
			return id, ok && m.pieces[id].kind == pieceByte
		})
	}
	if m.bpe {
		return m.makeBPE(ids, unknown, bytes)
	}
	u := &unigram{ids: ids, scores: make([]float64, len(m.pieces)), unknown: unknown, bytes: bytes, single: true, cache: newCache()}
	least := float32(math.MaxFloat32)
	for _, p := range m.pieces {
		if p.kind == pieceNormal {
			least = min(least, p.score)
		}
	}
	u.least = float64(least - unknownPenalty)
	var tokens []keyed
	for id, p := range m.pieces {
		switch p.kind {
		case pieceNormal:
			u.scores[id] = float64(p.score)
		case pieceUser:
			u.scores[id] = float64(float32(float64(len(p.text))*0.1 - 0.1)) // as in release 0.2.3, whatever the others have
		default:
			continue
		}
		tokens = append(tokens, keyed{p.text, int32(id)})
	}
	u.trie = newTrie(tokens)
	u.borders = true
	for _, token := range tokens {
		if strings.LastIndex(token.token, blank) > 0 {
			u.borders = false
		}
	}
	id, has := ids[blank] // else it would be unknown, and one token with unknown characters before it
	u.borders = u.borders && has && m.pieces[id].kind == pieceNormal
	return u, nil
}

// userPieces returns the pieces that their authors have defined, nil for none.
func (m *spModel) userPieces() (user *matcher, err error) {
	for id, p := range m.pieces {
		if p.kind != pieceUser {
			continue
		}
		if user == nil {
			user = &matcher{}
		}
		if err := user.add(p.text, addedToken{id: int32(id)}); err != nil {
			return nil, refused("piece %d: %w", id, err)
		}
	}
	if user != nil {
		if err := user.done(); err != nil {
			return nil, refused("pieces of users: %w", err)
		}
	}
	return user, nil
}

// makeBPE makes the model with all merges of two pieces to a third. Merges to a piece with a higher score come first, and of equal
// scores the leftmost in the text.
func (m *spModel) makeBPE(ids map[string]int32, unknown int32, bytes *[256]int32) (model, error) {
	b := &bpe{vocab: ids, merges: map[uint64]merged{}, single: slices.Repeat([]int32{-1}, singles), unknown: &m.pieces[unknown].text, fuseUnknown: true,
		user: m.spaces.user, fallback: bytes, cache: newCache(), joins: newPairs(2 * len(m.pieces))}
	var scores []float32
	var sizes [maxPiece + 1]bool // of pieces
	for id, p := range m.pieces {
		switch p.kind {
		case pieceNormal:
			sizes[len(p.text)] = true
			scores = append(scores, p.score)
		case pieceUser:
			b.join(p.text)
		case pieceUnused:
			return nil, refused("piece %d is unused, and BPE takes such pieces apart again", id)
		}
		if r, size := utf8.DecodeRuneInString(p.text); size == len(p.text) && r < singles && p.kind == pieceNormal {
			b.single[r] = int32(id)
		}
	}
	slices.SortFunc(scores, func(x, y float32) int { return cmp.Compare(y, x) })
	scores = slices.Compact(scores)
	normal := func(text string) (int32, bool) {
		id, ok := ids[text]
		return id, ok && m.pieces[id].kind == pieceNormal
	}
	for id, p := range m.pieces {
		if p.kind != pieceNormal {
			continue
		}
		rank, _ := slices.BinarySearchFunc(scores, p.score, func(x, y float32) int { return cmp.Compare(y, x) })
		for at := range p.text {
			if at == 0 || !sizes[at] || !sizes[len(p.text)-at] {
				continue
			}
			left, okL := normal(p.text[:at])
			right, okR := normal(p.text[at:])
			if !okL || !okR {
				continue
			}
			b.merges[pairKey(left, right)] = merged{uint32(rank), int32(id)}
			before, _ := utf8.DecodeLastRuneInString(p.text[:at])
			after, _ := utf8.DecodeRuneInString(p.text[at:])
			b.joins.add(before, after)
		}
		for i, r := range p.text {
			size := utf8.RuneLen(r)
			if _, ok := normal(string(r)); !ok && size < len(p.text) {
				return nil, refused("piece %d is %.40q, and its character at %d is none of the pieces", id, p.text, i)
			}
		}
		if most := mergesTimes*len(m.pieces) + mergesMore; len(b.merges) > most {
			return nil, refused("more than %d ways to make a piece of two others", most)
		}
	}
	return b, nil
}

// join says that neighbors in text belong together.
func (m *bpe) join(text string) {
	before := rune(-1)
	for _, r := range text {
		if before >= 0 {
			m.joins.add(before, r)
		}
		before = r
	}
}
