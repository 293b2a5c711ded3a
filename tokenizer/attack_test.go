package tokenizer_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/tokenizer"
)

// perByte is how many times the size of a tokenizer.json its reading may take at most, beside room.
const (
	perByte = 40
	room    = 300 << 20
)

// reading returns the most memory that a function has while it runs, beyond what was there before.
func reading(do func()) (most int64, took time.Duration) {
	memory := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	runtime.GC()
	before := memory()
	stop, highest := make(chan struct{}), make(chan int64)
	go func() {
		most := memory()
		for {
			select {
			case <-stop:
				highest <- most
				return
			case <-time.After(10 * time.Millisecond):
				most = max(most, memory())
			}
		}
	}()
	began := time.Now()
	do()
	took = time.Since(began)
	after := memory()
	close(stop)
	return max(<-highest, after) - before, took
}

// document is a tokenizer.json with sections beside its model.
func document(sections, vocab, merges string) string {
	return `{"version":"1.0",` + sections + `"model":{"type":"BPE","vocab":{` + vocab + `},"merges":[` + merges + `]}}`
}

// list joins n things.
func list(n int, one func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = one(i)
	}
	return strings.Join(all, ",")
}

func nestedSequence(depth int, key, inner string) string {
	return strings.Repeat(`{"type":"Sequence","`+key+`":[`, depth) + inner + strings.Repeat(`]}`, depth)
}

func pattern(expr string) string {
	return `{"type":"Split","pattern":{"Regex":` + strconv.Quote(expr) + `},"behavior":"Isolated","invert":false}`
}

func addedToken(id int, content string) string {
	return fmt.Sprintf(`{"id":%d,"content":%q,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, id, content)
}

// attack is a tokenizer.json that would take gigabytes or minutes.
type attack struct {
	name, text string
	want       string // of the error; nothing if the file is accepted
	encode     string // a text that the tokenizer then encodes
	failed     string // the error of that
}

func attacks() []attack {
	const small = `"a":0,"b":1,"ab":2`
	ids := list(60000, func(i int) string { return "0" })
	distinct := list(60, func(i int) string { return pattern(fmt.Sprintf(`(?:a|b|[^\p{L}%d]){900}x{%d}`, i, i+1)) })
	classes := func(i int) string { // different classes of letters
		var b strings.Builder
		for j := range 4000 {
			fmt.Fprintf(&b, `[^\p{L}\x{%x}]`, 0x4e00+j+i)
		}
		return b.String()
	}
	return []attack{
		{"ids of a template for each of its places", document(`"post_processor":{"type":"TemplateProcessing","single":[`+strings.Repeat(`{"SpecialToken":{"id":"x","type_id":0}},`, 12000)+`{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[`+list(60000, func(int) string { return "0" })+`],"tokens":["a"]}}},`, small, `"a b"`), "adds more than 256 tokens", "", ""},
		{"a template in a short section", document(`"post_processor":{"type":"TemplateProcessing","single":[`+strings.Repeat(`{"SpecialToken":{"id":"x","type_id":0}},`, 5000)+`{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[`+list(60000, func(int) string { return "0" })+`],"tokens":["a"]}}},`, small, `"a b"`), "adds more than 256 tokens", "", ""},
		{"a long list of ids", document(`"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[`+ids+`],"tokens":["a"]}}},`, small, `"a b"`), "", "ab", ""},
		{"5,000 patterns", document(`"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+list(5000, func(i int) string { return pattern(fmt.Sprintf(`(?:a|b){%d}`, i%900+1)) })+`]},`, small, `"a b"`), "more than 64 parts", "", ""},
		{"60 patterns of 100 bytes", document(`"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+distinct+`]},`, small, `"a b"`), "", "", ""},
		{"repetitions of repetitions", document(`"pre_tokenizer":`+pattern(`(?:(?:(?:a{1,9}|bc){1000}){1000}){1000}`)+`,`, small, `"a b"`), "a program of more than 1048576 bytes", "", ""},
		{"classes", document(`"pre_tokenizer":`+pattern(classes(0))+`,`, small, `"a b"`), "take more than 1048576 bytes", "", ""},
		{"patterns of classes in a long section", document(`"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+list(60, func(i int) string { return pattern(classes(i)) })+`]},`, small, `"a b"`), "want 1048576 at most", "", ""},
		{"choices in choices", document(`"pre_tokenizer":`+pattern(strings.Repeat("(?:", 60)+"a"+strings.Repeat("|b)", 60)+"{1000}")+`,`, small, `"a b"`), "a program of more", "", ""},
		{"choices of many branches", document(`"pre_tokenizer":`+pattern(`(?:(?:`+strings.Repeat(`aa|`, 20000)+`b)|c)`)+`,`, small, `"a b"`), "a program of more", "", ""},
		{"many letters without case", document(`"pre_tokenizer":`+pattern(`(?i:`+strings.Repeat("ab", 30000)+`)`)+`,`, small, `"a b"`), "a program of more", "", ""},
		{"Sequences in Sequences", document(`"pre_tokenizer":`+nestedSequence(17, "pretokenizers", `{"type":"WhitespaceSplit"}`)+`,`, small, `"a b"`), "nested deeper than 16", "", ""},
		{"long Sequences in Sequences", document(`"normalizer":`+nestedSequence(16, "normalizers", `{"type":"Prepend","prepend":"`+strings.Repeat("x", 1000)+`"}`+strings.Repeat(" ", 1_000_000))+`,`, small, `"a b"`), "", "", ""},
		{"longer Sequences in Sequences", document(`"normalizer":`+nestedSequence(16, "normalizers", `{"type":"NFC"}`+strings.Repeat(" ", 20_000_000))+`,`, small, `"a b"`), "want 1048576 at most", "", ""},
		{"empty Sequences", document(`"normalizer":{"type":"Sequence","normalizers":[`+list(20000, func(int) string { return `{"type":"Sequence","normalizers":[]}` })+`]},`, small, `"a b"`), "", "ab", ""},
		{"deep nesting", document(`"x":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+`,`, small, `"a b"`), "", "", ""},
		{"a huge id", document("", small+`,"c":99999999999999999999`, `"a b"`), "model.vocab.c: 99999999999999999999, want an integer of 0 or more that fits in uint32", "", ""},
		{"a negative id", document("", small+`,"c":-1`, `"a b"`), "-1, want an integer of 0 or more", "", ""},
		{"a fraction", document("", small+`,"c":1e3`, `"a b"`), "1e3, want an integer", "", ""},
		{"a gap of 2^31", document("", small+`,"c":2147483648`, `"a b"`), `id 2147483648 of "c" among 4 tokens`, "", ""},
		{"a gap in added tokens", document(`"added_tokens":[`+addedToken(2147483647, "<x>")+`],`, small, `"a b"`), `"<x>" with id 2147483647, want id 3`, "", ""},
		{"one id for two tokens", document("", small+`,"c":1`, `"a b"`), `"b" and "c" both have id 1`, "", ""},
		{"a token twice", document("", small+`,"a":3`, `"a b"`), "comes twice", "", ""},
		{"merges of no tokens", document("", small, `"a b","x y"`), `merges: [1] joins "x" and "y"`, "", ""},
		{"a merge of three", document("", small, `["a","b","c"]`), "want a pair of tokens", "", ""},
		{"many tokens", document("", list(300_000, func(i int) string { return fmt.Sprintf(`"%x":%d`, i, i) }), ""), "", "abc", ""},
		{"wide ids", document("", list(200_000, func(i int) string { return fmt.Sprintf(`"%x":%d`, i, i*8) }), ""), "", "abc", ""},
		{"long tokens", document("", list(1000, func(i int) string { return fmt.Sprintf(`"%05d%s":%d`, i, strings.Repeat("x", 20000), i) }), ""), "", "abc", ""},
		{"escaped tokens", document("", list(300_000, func(i int) string { return fmt.Sprintf(`"\u%04x\u%04x":%d`, i%5000+0x100, i/5000+0x100, i) }), ""), "", "abc", ""},
		{"many merges", document("", list(2000, func(i int) string { return fmt.Sprintf(`"%s":%d`, strings.Repeat("a", i+1), i) }), list(400_000, func(i int) string { return `"a a"` })), "", "aaaa", ""},
		{"long added tokens", document(`"added_tokens":[`+list(5000, func(i int) string { return addedToken(i+3, fmt.Sprintf("%d%s", i, strings.Repeat("x", 1000))) })+`],`, small, `"a b"`), "different beginnings", "", ""},
		{"too long an added token", document(`"added_tokens":[`+addedToken(3, strings.Repeat("x", 1025))+`],`, small, `"a b"`), "1025 bytes", "", ""},
		{"catastrophic", document(`"pre_tokenizer":`+pattern(`(?:a|a)*c`)+`,`, small, `"a b"`), "", strings.Repeat("a", 1_000_000), "steps"},
		{"catastrophic in short pieces", document(`"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+pattern(`.{1,40}`)+`,`+pattern(`(?:a|a)*c`)+`]},`, small, `"a b"`), "", strings.Repeat("a", 1_000_000), "steps"},
		{"quadratic", document(`"pre_tokenizer":`+pattern(`a*b`)+`,`, small, `"a b"`), "", strings.Repeat("a", 1_000_000), "steps"},
		{"open choices", document(`"pre_tokenizer":`+pattern(`(?:a|b|\n)*`)+`,`, small, `"a b"`), "", strings.Repeat("a", 8_000_000), "open choices"},
		{"open choices of a group", document(`"pre_tokenizer":`+pattern(`(?:a|b)+`)+`,`, small, `"a b"`), "", strings.Repeat("a", 8_000_000), "open choices"},
		{"a normalizer that grows", document(`"normalizer":{"type":"Sequence","normalizers":[`+list(40, func(int) string { return `{"type":"Replace","pattern":{"String":"a"},"content":"aaaa"}` })+`]},`, small, `"a b"`), "times as long", "", ""},
		{"padding", document(`"padding":{"strategy":{"Fixed":4294967295},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"a"},`, small, `"a b"`), "padding", "", ""},
	}
}

// TestAttacks: hostile files are errors, or take time and memory that their size accounts for.
//
//check:not race
func TestAttacks(t *testing.T) {
	for _, a := range attacks() {
		if !kerneltest.Full() && len(a.text)+len(a.encode) > 1<<20 {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			var tok *tokenizer.Tokenizer
			var err error
			most, took := reading(func() { tok, err = tokenizer.Parse([]byte(a.text)) })
			t.Logf("%d bytes, %d MiB, %v: %.150v", len(a.text), most>>20, took, err)
			require.Less(t, most, int64(room+perByte*len(a.text)))
			require.Less(t, took, 10*time.Second+time.Duration(len(a.text))*2*time.Microsecond)
			if a.want != "" {
				require.ErrorContains(t, err, a.want)
				require.Less(t, len(err.Error()), 600)
				require.True(t, isKind(err), err)
				return
			}
			if err != nil {
				require.True(t, isKind(err), err)
				return
			}
			most, took = reading(func() { _, err = tok.Encode(a.encode, tokenizer.EncodeOptions{}) })
			t.Logf("encodes %d bytes in %d MiB, %v: %.100v", len(a.encode), most>>20, took, err)
			require.Less(t, most, int64(room+perByte*len(a.encode)))
			require.Less(t, took, 20*time.Second)
			if a.failed != "" {
				require.ErrorContains(t, err, a.failed)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func isKind(err error) bool {
	return strings.Contains(err.Error(), snug.ErrConfig.Error()) || strings.Contains(err.Error(), snug.ErrCorrupt.Error())
}
