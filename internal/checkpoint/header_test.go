package checkpoint

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func anyHeader() *header {
	return &header{
		Format: format, Version: version, Run: ID{1, 2, 3}, Step: 25, About: json.RawMessage(`{"a":[1,2],"b":"<é>"}`),
		Parts: []PartInfo{{Name: "weights", Size: 1000, SHA256: Sum{4}}, {Name: "optimizer", Size: 2000, SHA256: Sum{5}}},
	}
}

// TestHeadersOutOfRange: right sums do not make a header right.
func TestHeadersOutOfRange(t *testing.T) {
	text, err := anyHeader().encode()
	require.NoError(t, err)
	got, err := decode(text)
	require.NoError(t, err)
	require.Equal(t, 25, got.Step)
	for what, change := range map[string]func(h *header){
		"format":       func(h *header) { h.Format = "checkpoint" },
		"version 0":    func(h *header) { h.Version = 0 },
		"newer":        func(h *header) { h.Version++ },
		"step -1":      func(h *header) { h.Step = -1 },
		"step 0":       func(h *header) { h.Step = 0 },
		"a long step":  func(h *header) { h.Step = MaxStep + 1 },
		"no parts":     func(h *header) { h.Parts = nil },
		"empty parts":  func(h *header) { h.Parts = []PartInfo{} },
		"many parts":   func(h *header) { h.Parts = slices.Repeat(h.Parts, MaxParts) },
		"twice":        func(h *header) { h.Parts[1].Name = "weights" },
		"itself":       func(h *header) { h.Parts[1].Name = HeaderName },
		"a path":       func(h *header) { h.Parts[1].Name = "../weights" },
		"no name":      func(h *header) { h.Parts[1].Name = "" },
		"no size":      func(h *header) { h.Parts[1].Size = 0 },
		"a short part": func(h *header) { h.Parts[1].Size = prefixSize("optimizer") + 31 },
		"negative":     func(h *header) { h.Parts[1].Size = -1 },
		"a huge part":  func(h *header) { h.Parts[1].Size = math.MaxInt64 },
		"a long about": func(h *header) { h.About = json.RawMessage(`"` + strings.Repeat("a", MaxAbout) + `"`) },
		"a key twice":  func(h *header) { h.About = json.RawMessage(`{"a":1,"a":2}`) },
		"not UTF-8":    func(h *header) { h.About = json.RawMessage("\"\xff\"") },
		"a half pair":  func(h *header) { h.About = json.RawMessage(`"\ud800"`) },
	} {
		t.Run(what, func(t *testing.T) {
			h := anyHeader()
			change(h)
			text, err := h.encode()
			require.NoError(t, err, what)
			_, err = decode(text)
			require.Error(t, err, what)
		})
	}
}

// TestHeadersOfAnotherText: what would be read as the same header is refused.
func TestHeadersOfAnotherText(t *testing.T) {
	text, err := anyHeader().encode()
	require.NoError(t, err)
	for _, change := range [][2]string{
		{`"step"`, `"Step"`}, {`"step": 25`, `"step": 25, "step": 25`}, {`"step": 25`, `"step": 25.0`}, {`"step": 25`, `"step": 2.5e1`}, {`"step": 25`, `"step":25`},
		{`"version": 1,`, `"version": 1, "more": null,`}, {`"version": 1,`, ``}, {`"run": "0102`, `"run": "0102\u0030`}, {"{\n", "{\r\n"},
		{`"about"`, `"\u0061bout"`}, {`\u003c`, `<`}, {`"sha256"`, `"SHA256"`},
	} {
		changed := bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1)
		require.NotEqual(t, text, changed, change)
		_, err := decode(changed)
		require.Error(t, err, change)
	}
	for _, more := range []string{" ", "\n", "{}", "\x00"} {
		_, err := decode(append(bytes.Clone(text), more...))
		require.Error(t, err)
	}
	h, err := decode(text)
	require.NoError(t, err)
	upper := strings.Replace(string(text), h.Parts[1].SHA256.String(), strings.ToUpper(h.Parts[1].SHA256.String()), 1)
	if upper != string(text) {
		_, err = decode([]byte(upper))
		require.Error(t, err)
	}
}

// FuzzHeader: a text is refused, or is the encoding of what it says.
func FuzzHeader(f *testing.F) {
	text, err := anyHeader().encode()
	require.NoError(f, err)
	f.Add(text, true)
	f.Add([]byte(`{"format":"snug checkpoint"}`), false)
	f.Fuzz(func(t *testing.T, text []byte, seal bool) {
		if h := new(header); seal && json.Unmarshal(text, h) == nil {
			if sealed, err := h.encode(); err == nil {
				text = sealed
			}
		}
		h, err := decode(text)
		if err != nil {
			return
		}
		again, err := h.encode()
		require.NoError(t, err)
		require.Equal(t, text, again)
		require.LessOrEqual(t, len(h.About), MaxHeader)
	})
}
