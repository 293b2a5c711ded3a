package strictjson

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type inner struct {
	Size int64   `json:"size"`
	Rate float32 `json:"rate,omitempty"`
}

type base struct {
	ID     uint8  `json:"id"`
	Hidden string `json:"name"` // by document's
}

type document struct {
	base
	Name    string           `json:"name"`
	Plain   bool             // its key is its name
	Step    int64            `json:"step"`
	Quoted  int              `json:"quoted,string,omitempty"`
	Files   map[string]inner `json:"files,omitempty"`
	List    []inner          `json:"list,omitempty"`
	Pair    [2]int           `json:"pair"`
	Bytes   []byte           `json:"bytes,omitempty"`
	Pointer *inner           `json:"pointer,omitempty"`
	Any     any              `json:"any,omitempty"`
	Raw     json.RawMessage  `json:"raw,omitempty"`
	Number  json.Number      `json:"number,omitempty"`
	When    *time.Time       `json:"when,omitempty"`
	Next    *document        `json:"next,omitempty"`
	Ignored int              `json:"-"`
	private int
}

func TestUnmarshal(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want document
	}{
		"nothing":     {`{}`, document{}},
		"space":       {" \n{\t\"step\" : 1 } \r\n", document{Step: 1}},
		"integers":    {`{"step": 9007199254740993, "id": 255}`, document{Step: 9007199254740993, base: base{ID: 255}}},
		"least":       {`{"step": -9223372036854775808}`, document{Step: math.MinInt64}},
		"any numbers": {`{"any": [9007199254740993, 1e999]}`, document{Any: []any{json.Number("9007199254740993"), json.Number("1e999")}}},
		"the outer":   {`{"name": "x"}`, document{Name: "x"}},
		"field name":  {`{"Plain": true}`, document{Plain: true}},
		"quoted":      {`{"quoted": "7"}`, document{Quoted: 7}},
		"map":         {`{"files": {"a": {"size": 1}, "A": {"size": 2}, "": {"size": 3}}}`, document{Files: map[string]inner{"a": {Size: 1}, "A": {Size: 2}, "": {Size: 3}}}},
		"list":        {`{"list": [{"size": 1}, {}], "pair": [1, 2]}`, document{List: []inner{{Size: 1}, {}}, Pair: [2]int{1, 2}}},
		"bytes":       {`{"bytes": "AQI="}`, document{Bytes: []byte{1, 2}}},
		"nulls":       {`{"files": null, "list": null, "pointer": null, "any": null, "when": null}`, document{}},
		"raw":         {`{"raw": {"A":1,"a":2}}`, document{Raw: json.RawMessage(`{"A":1,"a":2}`)}},
		"number":      {`{"number": 1.50}`, document{Number: "1.50"}},
		"pointers":    {`{"next": {"pointer": {"size": 5}}}`, document{Next: &document{Pointer: &inner{Size: 5}}}},
		"escapes":     {`{"name": "\ud83d\ude00 \\ud800 \ufffd \u0041"}`, document{Name: "\U0001F600 \\ud800 \ufffd A"}},
		"escaped key": {`{"\u0073tep": 2}`, document{Step: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var got document
			require.NoError(t, Unmarshal([]byte(c.text), &got), name)
			require.Equal(t, c.want, got, name)
		})
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":               {``, "at byte 0"},
		"cut":                 {`{"step": 1`, "at byte 10"},
		"more behind":         {`{"step": 1} {}`, "at byte 13"},
		"a byte order mark":   {"\ufeff{}", "at byte 1"},
		"not UTF-8":           {"{\"name\": \"\xff\"}", "not UTF-8"},
		"half a pair":         {`{"name": "\ud83d"}`, "byte 11: half of a surrogate pair"},
		"the second half":     {`{"name": "\ude00\ud83d"}`, "half of a surrogate pair"},
		"half before another": {`{"name": "\ud83d\u0041"}`, "half of a surrogate pair"},
		"another type":        {`[]`, "the JSON document: an array, want an object"},
		"null":                {`null`, "the JSON document: null"},
		"another case":        {`{"Step": 1}`, `Step: the key in another case, want "step"`},
		"case by folding":     {`{"ſtep": 1}`, `["ſtep"]: the key in another case, want "step"`},
		"case of a name":      {`{"plain": true}`, `plain: the key in another case, want "Plain"`},
		"unknown":             {`{"list": [{}, {"length": 1}]}`, `list[1].length: unknown key, want one of rate, size`},
		"ignored":             {`{"Ignored": 1}`, "Ignored: unknown key"},
		"private":             {`{"private": 1}`, "private: unknown key"},
		"twice":               {`{"step": 1, "step": 1}`, "step: the key comes twice"},
		"twice, escaped":      {`{"step": 1, "\u0073tep": 1}`, "step: the key comes twice"},
		"twice in a map":      {`{"files": {"a.bin": {}, "a.bin": {}}}`, `files["a.bin"]: the key comes twice`},
		"twice in any":        {`{"any": {"x": [0, {"a": 1, "a": 2}]}}`, "any.x[1].a: the key comes twice"},
		"twice in raw":        {`{"raw": {"a": 1, "a": 2}}`, "raw.a: the key comes twice"},
		"null integer":        {`{"step": null}`, "step: null"},
		"null string":         {`{"name": null}`, "name: null"},
		"null struct":         {`{"list": [null]}`, "list[0]: null"},
		"null array":          {`{"pair": null}`, "pair: null"},
		"fraction":            {`{"step": 1.0}`, "step: 1.0, want an integer that fits in int64"},
		"exponent":            {`{"step": 1e3}`, "step: 1e3"},
		"too large":           {`{"step": 9223372036854775808}`, "step: 9223372036854775808"},
		"below 0":             {`{"id": -1}`, "id: -1, want an integer of 0 or more that fits in uint8"},
		"beyond uint8":        {`{"id": 256}`, "id: 256"},
		"beyond float32":      {`{"pointer": {"rate": 1e39}}`, "pointer.rate: 1e39, want a number that fits in float32"},
		"string for a number": {`{"step": "1"}`, `step: "1", want an integer`},
		"number for a string": {`{"name": 1}`, "name: 1, want a string"},
		"number for a bool":   {`{"Plain": 1}`, "Plain: 1, want true or false"},
		"object for a list":   {`{"list": {}}`, "list: an object, want an array"},
		"list for a map":      {`{"files": []}`, "files: an array, want an object"},
		"quoted, bare":        {`{"quoted": 7}`, "quoted: 7, want a string"},
		"numbers for bytes":   {`{"bytes": [1]}`, "bytes: an array, want a string of base64"},
		"not base64":          {`{"bytes": "?"}`, "base64"},
		"quoted number":       {`{"number": "1"}`, `number: "1", want a number`},
		"not a time":          {`{"when": "noon"}`, "noon"},
		"element missing":     {`{"pair": [1]}`, "pair: 1 elements, want 2"},
		"element too many":    {`{"pair": [1, 2, 3]}`, "pair: 3 elements, want 2"},
		"too deep":            {`{"any": ` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, "nested deeper than 64 levels"},
		"bottomless":          {strings.Repeat("[", 1<<20), "exceeded max depth"},
	} {
		got := document{Step: 42, Pair: [2]int{4, 2}}
		err := Unmarshal([]byte(c.text), &got)
		require.ErrorContains(t, err, c.want, name)
		require.Equal(t, document{Step: 42, Pair: [2]int{4, 2}}, got, name)
	}
}

func TestInto(t *testing.T) {
	require.ErrorContains(t, Unmarshal([]byte(`{}`), nil), "pointer")
	require.ErrorContains(t, Unmarshal([]byte(`{}`), document{}), "pointer")
	require.ErrorContains(t, Unmarshal([]byte(`{}`), (*document)(nil)), "pointer")
	require.ErrorContains(t, Unmarshal([]byte(`{"1": 1}`), &map[int]int{}), "want strings")
	require.ErrorContains(t, Unmarshal([]byte(`{"f": 1}`), &struct {
		F func() `json:"f"`
	}{}), "f: a value of type func()")

	kept := document{Name: "kept", Step: 1, private: 7}
	require.NoError(t, Unmarshal([]byte(`{"step": 2}`), &kept))
	require.Equal(t, document{Name: "kept", Step: 2, private: 7}, kept)

	var x any
	require.NoError(t, Unmarshal([]byte(`{"a": [null, true, "s", 1]}`), &x))
	require.Equal(t, map[string]any{"a": []any{nil, true, "s", json.Number("1")}}, x)
	var n int8
	require.NoError(t, Unmarshal([]byte(`-128`), &n))
	require.Equal(t, int8(-128), n)
}

func TestOptions(t *testing.T) {
	var d document
	open := Options{Open: true}
	require.NoError(t, open.Unmarshal([]byte(`{"step": 3, "other": {"step": null}, "list": [{"size": 1, "more": 2}]}`), &d))
	require.Equal(t, document{Step: 3, List: []inner{{Size: 1}}}, d)
	require.ErrorContains(t, open.Unmarshal([]byte(`{"STEP": 3}`), &d), `STEP: the key in another case, want "step"`)
	require.ErrorContains(t, open.Unmarshal([]byte(`{"other": 1, "other": 1}`), &d), "other: the key comes twice")
	require.ErrorContains(t, open.Unmarshal([]byte(`{"other": {"x": 1, "x": 1}}`), &d), "other.x: the key comes twice")

	complete := Options{Complete: true}
	const whole = `{"id": 0, "name": "", "Plain": false, "step": 0, "pair": [0, 0]}`
	require.NoError(t, complete.Unmarshal([]byte(whole), &d))
	for _, key := range []string{`"id"`, `"name"`, `"Plain"`, `"step"`, `"pair"`} {
		fields := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal([]byte(whole), &fields))
		delete(fields, strings.Trim(key, `"`))
		text, err := json.Marshal(fields)
		require.NoError(t, err)
		require.ErrorContains(t, complete.Unmarshal(text, &d), "the JSON document: there is no key "+key)
	}
	var list struct {
		List []inner `json:"list"`
	}
	require.ErrorContains(t, complete.Unmarshal([]byte(`{"list": [{"size": 1}, {}]}`), &list), `list[1]: there is no key "size"`)

	short := Options{MaxBytes: 2, MaxDepth: 1}
	require.NoError(t, short.Unmarshal([]byte(`{}`), &d))
	require.ErrorContains(t, short.Unmarshal([]byte(`{} `), &d), "3 bytes, want 2 at most")
	require.ErrorContains(t, Options{MaxDepth: 1}.Unmarshal([]byte(`{"any": []}`), &d), "any: nested deeper than 1 levels")
}

// What encoding/json writes is read back, and a change of one key's case, a second
// key or a word behind it is refused.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomDocument().Draw(t, "document")
		text, err := json.Marshal(in)
		require.NoError(t, err)
		var out document
		require.NoError(t, Options{Complete: true}.Unmarshal(text, &out), "%s", text)
		again, err := json.Marshal(out)
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))

		key := []byte(`"step":`)
		at := bytes.LastIndex(text, key)
		for _, other := range []string{`"sTep":`, `"":`, `"step":1,"step":`, `"step":1e0,"steps":`, `"step":null,"x":`} {
			bad := string(text[:at]) + other + string(text[at+len(key):])
			require.Error(t, Unmarshal([]byte(bad), &out), bad)
		}
		require.Error(t, Unmarshal(append(text, "{}"...), &out))
		require.Error(t, Unmarshal(text[:len(text)-1], &out))
	})
}

func randomDocument() *rapid.Generator[document] {
	return rapid.Custom(func(t *rapid.T) document {
		part := rapid.Custom(func(t *rapid.T) inner {
			return inner{Size: rapid.Int64().Draw(t, "size"), Rate: rapid.Float32().Draw(t, "rate")}
		})
		text := rapid.String()
		d := document{
			Name: text.Draw(t, "name"), Step: rapid.Int64().Draw(t, "step"), Quoted: rapid.Int().Draw(t, "quoted"),
			Files: rapid.MapOfN(text, part, 0, 3).Draw(t, "files"), List: rapid.SliceOfN(part, 0, 3).Draw(t, "list"),
			Bytes: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "bytes"),
		}
		d.ID = rapid.Byte().Draw(t, "id")
		if rapid.Bool().Draw(t, "nested") {
			d.Next = &document{Name: text.Draw(t, "inner name")}
			d.Any = map[string]any{text.Draw(t, "key"): nil}
		}
		return d
	})
}

// FuzzUnmarshal compares with encoding/json: what is accepted here is accepted there,
// with the same value, and what is written again is the same.
func FuzzUnmarshal(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"step": 1, "files": {"a": {"size": 2}}, "any": [1, {"x": null}]}`, `{"Step": 1}`,
		`{"name": "\ud83d\ude00"}`, `{"step": 1, "step": 2}`, `{"pair": [1, 2], "quoted": "3", "raw": [], "number": -0.1e5}`,
		`{"next": {"next": {"list": [{}, {"rate": 1}]}}}`, `[`, `{"bytes": "AQI="}`, `{"when": "2026-01-02T03:04:05Z"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want document
		if Unmarshal(text, &got) != nil {
			require.Equal(t, document{}, got)
			require.NotPanics(t, func() { _ = Options{Open: true, Complete: true}.Unmarshal(text, &got) })
			return
		}
		dec := decoder(text)
		dec.DisallowUnknownFields()
		require.NoError(t, dec.Decode(&want))
		require.Equal(t, want, got)
		written, err := json.Marshal(got)
		require.NoError(t, err)
		var again document
		require.NoError(t, Unmarshal(written, &again))
		rewritten, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(written), string(rewritten))
	})
}
