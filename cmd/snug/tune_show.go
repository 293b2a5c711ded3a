package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/report"
	"github.com/snug-ml/snug/meter"
)

// dataFlags say how rows of the data are read, and what is shown of them.
type dataFlags struct {
	format, maps, template string
	show                   int
}

// formNames are the values of -format.
func formNames() []string {
	return append([]string{"auto"}, namesOf(dataset.Forms(), func(f dataset.Form) string { return f.Name })...)
}

// filesFlag, formatFlag and mapFlag are the flags -data, -format and -map.
func (f *tuneFlags) filesFlag() *flagRow {
	return fileFlag("data", "PATH", &f.files, "JSON (.jsonl, .ndjson, .json: lines or one array), CSV (.csv, .tsv), Parquet, text (.txt, .md, source code), or a folder of them; several with commas, "+
		"or patterns with * and ?. gzip and zstd are known by their first bytes. A pipe, such as /dev/stdin or <(command), is JSON or text. Of a folder the files of one kind are "+
		"read: Parquet, or else JSON, CSV or text; not hidden ones, READMEs, licenses, or, beside files for training, those for tests. Tokens beyond 4 MiB go to a temporary "+
		"file in $TMPDIR, or if that is not set in /var/tmp.\nA row is read by its fields, see -format. It says how each file was read, which fields are ignored, and what of it is not learned").inOne(withCommas)
}

func (f *dataFlags) formatFlag() *flagRow {
	help := "form of the rows: auto (default), or one of"
	for _, form := range dataset.Forms() {
		name := form.Name
		if form.Pairs {
			name += " (-dpo)"
		}
		help += "\n- " + name + ": " + form.Fields
	}
	return textFlag("format", "NAME", &f.format, help+"\nWith a name, fields of other forms are ignored").completed(formNames())
}

func (f *dataFlags) mapFlag() *flagRow {
	return textFlag("map", "LIST", &f.maps, "read fields under other names: name=field, with commas, such as question=frage,answer=antwort. name= leaves a field out")
}

// wrapped divides a text into lines of at most n letters.
func wrapped(text string, n int) (lines []string) {
	for paragraph := range strings.SplitSeq(text, "\n") {
		lines = append(lines, wrapParagraph(paragraph, n)...)
	}
	return lines
}

func wrapParagraph(text string, n int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= n {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// check returns what is wrong with the flags, or an empty string.
func (f *dataFlags) check(pairs bool) string {
	forms := slices.DeleteFunc(dataset.Forms(), func(form dataset.Form) bool { return form.Pairs != pairs })
	names := namesOf(forms, func(f dataset.Form) string { return f.Name })
	if f.format != "" && f.format != "auto" && !slices.Contains(names, f.format) {
		with := "without"
		if pairs {
			with = "with"
		}
		return fmt.Sprintf("-format %.40q: want auto or, %s -dpo, one of %s", f.format, with, strings.Join(names, ", "))
	}
	if _, err := f.fieldMap(); err != nil {
		return "-map: " + err.Error()
	}
	return ""
}

// fieldMap parses -map: to=from, with commas. An empty from leaves the field out.
func (f *dataFlags) fieldMap() (map[string]string, error) {
	if f.maps == "" {
		return nil, nil
	}
	m := map[string]string{}
	for _, part := range strings.Split(f.maps, ",") {
		to, from, found := strings.Cut(part, "=")
		if _, twice := m[to]; !found || to == "" || twice {
			return nil, fmt.Errorf("%.40q, want name=field, each name once, such as question=frage,answer=antwort; name= leaves a field out", part)
		}
		m[to] = from
	}
	return m, nil
}

// dataLines returns what the files hold, as lines: how each was read, what it has that is not learned, and warnings. Files
// that were read alike share their lines.
func dataLines(s dataset.Stats) (lines []string) {
	const most = 8 // files that are named
	for i := 0; i < len(s.Files); {
		same := i + 1
		about := s.Files[i].Lines()
		for same < len(s.Files) && slices.Equal(s.Files[same].Lines(), about) {
			same++
		}
		name := filepath.Base(s.Files[i].Path)
		if same > i+1 {
			name += fmt.Sprintf(" and %s more", console.Count(same-i-1, "file"))
		}
		if len(lines) >= most*4 {
			return append(lines, fmt.Sprintf("and %s more", console.Count(len(s.Files)-i, "file")))
		}
		for _, line := range about {
			lines = append(lines, name+": "+line)
		}
		i = same
	}
	return lines
}

// dataLines returns what the files hold, and which chat template writes it.
func (t *tuning) dataLines() []string {
	lines := dataLines(t.data.Stats())
	if note := templateNote(t.tok, t.template); note != "" {
		lines = append(lines, note)
	}
	return lines
}

// describeData prints what the files hold.
func (t *tuning) describeData() {
	s := t.data.Stats()
	what, each := "sample", ""
	if t.beta > 0 {
		what, each = "pair", "answers "
	}
	fmt.Fprintf(t.call.stdout, "data: %s to train on and %d held out, %sof %d tokens at most; %d tokens, of which %d are learned\n",
		console.Count(s.Samples, what), s.HeldOut, each, t.context, s.Tokens, s.Trained)
	for _, line := range t.dataLines() {
		fmt.Fprintf(t.call.stdout, "      %s\n", escaped(line))
	}
	if len(s.Files) > 1 && (s.Truncated > 0 || s.Dropped > 0) {
		fmt.Fprintf(t.call.stdout, "      in all, %s cut to the context, and %d left out\n", console.Count(s.Truncated, what), s.Dropped)
	}
	if s.OnDisk > 0 {
		fmt.Fprintf(t.call.stdout, "      tokens on disk: %s in a temporary file in %s\n", meter.FormatBytes(s.OnDisk), s.Folder)
	}
	fmt.Fprintln(t.call.stdout)
}

// shownSample is a sample of -show with -json.
type shownSample struct {
	From   string   `json:"from"`
	Texts  []string `json:"texts"`
	Tokens int      `json:"tokens"`
	Labels int      `json:"labels"`
}

// showData is the run of -show: it prints the first samples with what is learned of them, and ends.
func (t *tuning) showData() error {
	t.describeData()
	colour := console.NewScreen(t.call.stdout) != nil
	var list []shownSample
	for x, err := range t.data.Show(t.tok) {
		if err != nil {
			return err
		}
		list = append(list, t.shown(x))
		writeSample(t.call.stdout, len(list), x, colour)
		if len(list) == t.show {
			break
		}
	}
	if t.page != "" {
		if err := writeReport(t.page, t.dataDocument()); err != nil {
			return err
		}
		fmt.Fprintf(t.call.stdout, "the report is in %s\n", t.page)
	}
	if !t.json {
		return nil
	}
	return writeLine(t.call.stdout, struct {
		Data    dataset.Stats `json:"data"`
		Samples []shownSample `json:"samples"`
	}{t.data.Stats(), list})
}

func (t *tuning) shown(x dataset.Shown) (s shownSample) {
	s.From = x.From
	for _, text := range x.Texts {
		s.Texts = append(s.Texts, text.String())
		s.Tokens += text.Tokens
		s.Labels += text.Labels
	}
	return s
}

// writeSample prints a sample. On a terminal what is learned also has a colour.
func writeSample(w io.Writer, number int, x dataset.Shown, colour bool) {
	for i, text := range x.Texts {
		name := ""
		if len(x.Texts) > 1 {
			name = [...]string{", chosen", ", rejected"}[i]
		}
		fmt.Fprintf(w, "sample %d%s, %s: %s, of which %d are learned, between %s and %s\n", number, name, escaped(x.From), console.Count(text.Tokens, "token"), text.Labels, dataset.LearnedBegin, dataset.LearnedEnd)
		for _, p := range text.Pieces {
			said := visible(p.String())
			if p.Learned && colour {
				said = "\x1b[32m" + said + "\x1b[0m"
			}
			fmt.Fprint(w, said)
		}
		if n := len(text.Pieces); n > 0 && strings.HasSuffix(text.Pieces[n-1].Text, "\n") {
			fmt.Fprintln(w)
			continue
		}
		fmt.Fprint(w, "\n\n")
	}
}

// visible returns a text whose characters that control a terminal are written as in Go, except line breaks and tabs.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) && !unicode.IsSpace(r) || r == '\r' {
			b.WriteString(strings.Trim(fmt.Sprintf("%+q", r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// reportedSamples and reportedLetters limit the samples of a report.
const (
	reportedSamples = 3
	reportedLetters = 4000
)

// reportData adds to a report what the data hold, and the first samples with what is learned of them.
func (t *tuning) reportData(d *report.Document) {
	d.Lines = t.dataLines()
	n := 0
	for x, err := range t.data.Show(t.tok) {
		if err != nil || n == max(reportedSamples, t.show) {
			return
		}
		n++
		for i, text := range x.Texts {
			s := report.Sample{Name: fmt.Sprintf("sample %d, %s: %s, of which %d are learned", n, x.From, console.Count(text.Tokens, "token"), text.Labels)}
			if len(x.Texts) > 1 {
				s.Name = [...]string{"chosen, ", "rejected, "}[i] + s.Name
			}
			left := reportedLetters
			for _, p := range text.Pieces {
				said := visible(p.Text)
				if letters := []rune(said); len(letters) > left {
					said = string(letters[:left]) + " …"
					left = 0
				} else {
					left -= len(letters)
				}
				s.Pieces = append(s.Pieces, report.Piece{Text: said, Learned: p.Learned})
				if left == 0 {
					break
				}
			}
			d.Samples = append(d.Samples, s)
		}
	}
}

// dataDocument is the report of -show.
func (t *tuning) dataDocument() (d report.Document) {
	d = report.Document{Title: folderName(t.dir, filepath.Base(t.dir)), Status: report.Planned, State: "data, nothing has run"}
	d.Settings = flagFacts(t.flags)
	t.reportData(&d)
	return d
}
