package text

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Corpus is a text as tokens: a part to train on and a part held out.
type Corpus struct {
	Vocabulary  *Vocabulary
	Train, Held []uint16
}

// Load reads a text of at most limit bytes, see [Read], makes a vocabulary for it, and holds the last tenth
// out. There are at least 10 times as many tokens as least says.
func Load(ctx context.Context, path string, limit, vocabulary, least int) (*Corpus, error) {
	b, err := Read(ctx, path, limit)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("%s: no text", path)
	}
	v := NewVocabulary(b, vocabulary)
	tokens := v.Encode(b)
	if len(tokens) < 10*least {
		return nil, fmt.Errorf("the text is too short: %d tokens, want at least %d", len(tokens), 10*least)
	}
	cut := len(tokens) - len(tokens)/10
	return &Corpus{v, tokens[:cut], tokens[cut:]}, nil
}

// Sum returns the SHA-256 of the tokens, in hexadecimal digits.
func (c *Corpus) Sum() string {
	sum := sha256.New()
	for _, tokens := range [][]uint16{c.Train, c.Held} {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(tokens)))
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint16(b, t)
			if len(b) >= 1<<12 {
				sum.Write(b)
				b = b[:0]
			}
		}
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// AppendSequence appends n tokens to inputs, and the tokens after them to targets. The sequence begins at a
// place that its key alone determines.
func AppendSequence(inputs, targets []int32, from []uint16, n int, key uint64) ([]int32, []int32) {
	at := Mix(key) % uint64(len(from)-n)
	for i := range uint64(n) {
		inputs, targets = append(inputs, int32(from[at+i])), append(targets, int32(from[at+i+1]))
	}
	return inputs, targets
}

// Mix is the output function of the SplitMix64 generator (Steele, Lea and
// Flood, OOPSLA 2014).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
