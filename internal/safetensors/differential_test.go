package safetensors

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// strict are the files that the reference implementation takes and this package refuses,
// by the error.
var strict = []struct {
	what, reason string
	err          *regexp.Regexp
}{
	{"space before the header", "the format's text says that the header begins with {", regexp.MustCompile(`^the header begins with "(\\t|\\n|\\r| )", want {`)},
	{"a key that comes twice", "readers differ on which one counts", regexp.MustCompile(`key "[^"]*" comes twice`)},
	{"a tensor that is an array", "the format's text says an object; only Rust's reader takes fields by their places", regexp.MustCompile(`^tensor "[^"]*": "\[.*, want an object`)},
	{"a shape beyond an int", "it is empty by another dimension of 0, but its product or a dimension fits no int", regexp.MustCompile(`^tensor "[^"]*": (shape\[\d+\] is \d+, want an integer of 0 or more that fits in int|a shape of more than \d+ elements)`)},
}

// whyStricter returns what of strict an error is about, or nothing.
func whyStricter(err error) string {
	for _, s := range strict {
		if err != nil && s.err.MatchString(err.Error()) {
			return s.what
		}
	}
	return ""
}

// TestDifferential reads thousands of files, valid and not, of which the reference
// implementation's verdict is recorded: testdata/differential.py made them.
func TestDifferential(t *testing.T) {
	f, err := os.Open("testdata/differential.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	r := bufio.NewReader(z)
	line, err := r.ReadBytes('\n')
	require.NoError(t, err)
	var kinds []string
	require.NoError(t, json.Unmarshal(line, &kinds))

	files, taken, stricter := 0, 0, map[string]int{}
	for ; ; files++ {
		var head [6]byte
		if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		b := make([]byte, binary.LittleEndian.Uint32(head[2:]))
		_, err := io.ReadFull(r, b)
		require.NoError(t, err)
		h, err := read(b)
		switch {
		case err == nil && head[1] == 1:
			requireSound(t, h, b)
			requireRoundTrip(t, h)
			taken++
		case err == nil:
			t.Errorf("%s: the reference refuses %q", kinds[head[0]], b)
		case !errors.Is(err, snug.ErrCorrupt):
			t.Errorf("%s: %v for %q", kinds[head[0]], err, b)
		case head[1] == 1:
			why := whyStricter(err)
			if stricter[why]++; why == "" {
				t.Errorf("%s: %v, and the reference takes %q", kinds[head[0]], err, b)
			}
		}
	}
	require.Greater(t, files, 6000)
	require.Greater(t, taken, 1000)
	for _, s := range strict {
		require.NotZero(t, stricter[s.what], "%s: %s", s.what, s.reason)
	}
	t.Logf("%d files, %d taken; stricter: %v", files, taken, stricter)
}
