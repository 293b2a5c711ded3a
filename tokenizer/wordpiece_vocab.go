package tokenizer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/files"
)

// bertClasses are the classes of transformers that a vocab.txt is of.
var bertClasses = []string{"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"}

func init() {
	addForm(form{order: 4, files: [][]string{{"vocab.txt"}}, open: openBert, suits: func(folder string, f configFile) bool {
		return slices.Contains(bertClasses, f.classOf(folder))
	}})
}

// openBert builds the tokenizer of vocab.txt, which has a token in each line.
func openBert(folder string, names []string, c *Config, f configFile) (*Tokenizer, error) {
	path := filepath.Join(folder, names[0])
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	model := &wordPieceFile{Type: "WordPiece", Unknown: "[UNK]", Prefix: "##", Most: 100, Vocab: map[string]uint32{}}
	n := 0
	for line := range strings.Lines(string(data)) {
		token := strings.TrimRight(line, "\r\n")
		if _, twice := model.Vocab[token]; twice || !utf8.ValidString(token) {
			return nil, fmt.Errorf("tokenizer: %s: %w", path, damaged("line %d is %.100q, want UTF-8 that no other line has", n+1, token))
		}
		model.Vocab[token] = uint32(n)
		n++
	}
	c.standard([]SpecialToken{{"unk_token", "[UNK]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"}, {"mask_token", "[MASK]"}}, f, nil)
	model.Unknown = c.token("unk_token")
	accents := "null"
	if f.Accents != nil {
		accents = fmt.Sprint(*f.Accents)
	}
	file := &file{Model: modelPart{model}, PreTokenizer: []byte(`{"type":"BertPreTokenizer"}`), Decoder: []byte(`{"type":"WordPiece","prefix":"##","cleanup":true}`)}
	file.Normalizer = fmt.Appendf(nil, `{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":%t,"strip_accents":%s,"lowercase":%t}`,
		f.Ideographs == nil || *f.Ideographs, accents, f.Lower == nil || *f.Lower)
	known := func(token string) (uint32, bool) {
		id, ok := model.Vocab[token]
		return id, ok
	}
	if err := file.addTokens(folder, c, f, known, n); err != nil {
		return nil, err
	}
	t, err := file.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	first, okFirst := t.ID(c.token("cls_token"))
	last, okLast := t.ID(c.token("sep_token"))
	if !okFirst || !okLast {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, damaged("no tokens %.40q and %.40q, which are around texts", c.token("cls_token"), c.token("sep_token")))
	}
	t.post = []postProcessor{template{{ids: []int32{first}}, {text: true}, {ids: []int32{last}}}}
	return t, nil
}
