package main

import (
	"context"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// explained are the pages of docs that are no guides. Their samples and commands are held by TestSamplesAreTheDocs and
// TestDocuments, those of after-tuning.md and gguf.md by the tests of export and of GGUF files, those of serving.md by the tests of serve, and
// those of gomlx.md by the tests of its module.
var explained = []string{"models.md", "after-tuning.md", "architecture.md", "backends.md", "data.md", "dependencies.md", "from-pytorch.md", "gguf.md", "images.md", "gomlx.md", "scaling.md", "serving.md", "troubleshooting.md"}

// ranksGuide is the guide with commands that call mpiexec.
const ranksGuide = "many-processes.md"

// TestMain is snug if it has that name, as in the commands of the guides. What was measured of this machine is not read.
func TestMain(m *testing.M) {
	cacheDir = func() (string, error) { return "", fs.ErrNotExist }
	if filepath.Base(os.Args[0]) == "snug" {
		main()
	}
	os.Exit(m.Run())
}

// block is a fenced block of a guide.
type block struct {
	line     int
	language string
	text     string
}

// blocks returns the fenced blocks of a guide. Code that is only indented is an error, because nothing would run it.
func blocks(page string) (list []block, prose string, err error) {
	fenced := false
	var text strings.Builder
	number := 0
	for line := range strings.Lines(page) {
		number++
		language, fence := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case fence && fenced:
			fenced = false
		case fence:
			list = append(list, block{line: number, language: language})
			fenced = true
		case fenced:
			list[len(list)-1].text += line
		case strings.HasPrefix(line, "    "):
			return nil, "", fmt.Errorf("line %d is indented: commands of a guide are in blocks that begin with ```sh or ```console", number)
		default:
			text.WriteString(line)
		}
	}
	if fenced {
		return nil, "", fmt.Errorf("the block of line %d does not end", list[len(list)-1].line)
	}
	return list, text.String(), nil
}

// step is a command of a guide, and what it prints if the guide says that.
type step struct {
	command string
	want    []string // nil: not said
}

// steps returns the commands of a block of the language sh, which are one, or console, where they follow "$ ".
func (b block) steps() (list []step) {
	if b.language == "sh" {
		return []step{{command: b.text}}
	}
	for line := range strings.Lines(b.text) {
		line = strings.TrimSuffix(line, "\n")
		if command, found := strings.CutPrefix(line, "$ "); found {
			list = append(list, step{command: command, want: []string{}})
		} else if len(list) > 0 {
			list[len(list)-1].want = append(list[len(list)-1].want, line)
		}
	}
	return list
}

// difference says what of an output is not as wanted: "…" stands for any text of a line, and a line of it for any lines.
func difference(want []string, out string) string {
	var pattern strings.Builder
	for _, line := range want {
		if line == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.Join(strings.Fields(line), " ")), "…", ".*") + "\n")
	}
	var got strings.Builder
	for line := range strings.Lines(out) {
		got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	if regexp.MustCompile("^" + pattern.String() + "$").MatchString(got.String()) {
		return ""
	}
	return fmt.Sprintf("the guide says\n%s\nand the output is\n%s", strings.Join(want, "\n"), out)
}

var (
	programName = regexp.MustCompile(`^// (\w+\.go) `)
	words       = regexp.MustCompile(`\S*[\pL\pN]\S*`)
	outputs     = regexp.MustCompile(` -o (\S+)`)
	looksRun    = regexp.MustCompile(`(?m)^(\$ |snug |go |mpiexec |python)`)
)

// checkBlock returns an error for a block that nothing runs.
func checkBlock(b block) error {
	switch b.language {
	case "sh", "console":
		if len(b.steps()) == 0 {
			return fmt.Errorf("the block of line %d has no command", b.line)
		}
	case "go":
		if !programName.MatchString(b.text) || !strings.Contains(b.text, "\npackage main\n") {
			return fmt.Errorf("the Go code of line %d is no program that begins with \"// name.go \"", b.line)
		}
		formatted, err := format.Source([]byte(b.text))
		if err != nil {
			return fmt.Errorf("the program of line %d: %w", b.line, err)
		}
		if string(formatted) != b.text {
			return fmt.Errorf("the program of line %d is not formatted", b.line)
		}
	case "text":
		if looksRun.MatchString(b.text) {
			return fmt.Errorf("the block of line %d has commands that nothing runs", b.line)
		}
	default:
		return fmt.Errorf("the block of line %d is of %q, want sh, console, go or text", b.line, b.language)
	}
	return nil
}

// guides are the names of the pages that are guides.
func guides(t *testing.T) (names []string) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	require.NoError(t, err)
	for _, page := range pages {
		if name := filepath.Base(page); !slices.Contains(explained, name) {
			names = append(names, name)
		}
	}
	require.GreaterOrEqual(t, len(names), 1)
	return names
}

func readGuide(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	return string(text)
}

// TestGuides: the commands of every guide work, one after the other, on a small model; its programs are formatted,
// pass vet and print what it says. Commands that call mpiexec are left out, see TestRanksGuide.
//
//check:not bits32
func TestGuides(t *testing.T) {
	for _, name := range guides(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runGuide(t, readGuide(t, name), false)
		})
	}
}

// TestRanksGuide runs all commands of the guide that has ranks in processes.
//
//check:in ranks
func TestRanksGuide(t *testing.T) {
	mpiexec(t)
	runGuide(t, readGuide(t, ranksGuide), true)
}

func runGuide(t *testing.T, page string, ranks bool) {
	if runtime.GOOS == "windows" {
		t.Skip("the commands of guides are for a shell of Unix")
	}
	for _, program := range []string{"sh", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("compiled tests run where these are not installed: ", err)
		}
	}
	list, prose, err := blocks(page)
	require.NoError(t, err)
	require.LessOrEqual(t, len(words.FindAllString(prose, -1)), 900, "words of the guide besides its code")
	folder := guideFolder(t)
	shared := slices.Clone(openMPI)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PATH=") {
			shared = append(shared, v)
		}
	}
	shared = append(shared, "PATH="+filepath.Join(folder, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	shell := func(command string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, "sh", "-e", "-c", command)
		c.WaitDelay = time.Second
		c.Dir, c.Env = folder, shared
		out, err := c.CombinedOutput()
		return string(out), err
	}
	commands := 0
	for _, b := range list {
		require.NoError(t, checkBlock(b))
		switch b.language {
		case "go":
			name := programName.FindStringSubmatch(b.text)[1]
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(b.text), 0o600))
			out, err := shell("go vet " + name)
			require.NoError(t, err, out)
			require.Regexp(t, `\n(\$ )?go (run|build -o \w+) `+name, page, "no command runs the program")
		case "sh", "console":
			for _, s := range b.steps() {
				if strings.Contains(s.command, "mpiexec") && !ranks {
					require.Contains(t, readGuide(t, ranksGuide), s.command)
					continue
				}
				commands++
				out, err := shell(s.command)
				require.NoError(t, err, "%s\n%s", s.command, out)
				for _, made := range outputs.FindAllStringSubmatch(s.command, -1) {
					_, err := os.Stat(filepath.Join(folder, made[1]))
					require.NoError(t, err, s.command)
				}
				if s.want != nil {
					require.Empty(t, difference(s.want, out), s.command)
				}
			}
		}
	}
	require.NotZero(t, commands, "a guide ends by commands")
	require.NotEqual(t, "go", list[len(list)-1].language, "a guide ends by commands")
}

// guideFolder makes a folder with what the guides begin with: a model, data, and the program snug in bin. It lies within
// the module, so that programs in it import packages of it.
func guideFolder(t *testing.T) string {
	build, err := filepath.Abs(filepath.Join("..", "..", ".build"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(build, 0o777))
	folder, err := os.MkdirTemp(build, "guide-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	require.NoError(t, os.Mkdir(filepath.Join(folder, "bin"), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(folder, "bin", "snug")))
	require.NoError(t, os.CopyFS(filepath.Join(folder, "model"), os.DirFS(publish(t))))
	for name, line := range map[string]string{
		"chats.jsonl": "", "pairs.jsonl": `{"prompt": "say a", "chosen": "a a", "rejected": "b"}` + "\n",
	} {
		text := []byte(strings.Repeat(line, 20))
		if line == "" {
			text, err = os.ReadFile(chats(t, 20))
			require.NoError(t, err)
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
	}
	return folder
}

// TestGuidesAreRun: a block that would not run, or whose output differs, is found.
func TestGuidesAreRun(t *testing.T) {
	for _, wrong := range []string{
		"    snug plan model\n", "```sh\nsnug plan\n", "```text\nsnug plan model\n```\n", "```\nsnug plan\n```\n", "```bash\nsnug plan\n```\n",
		"```console\nsnug plan\n```\n", "```go\nerr := f()\n```\n", "```go\n// a.go is\npackage main\n\nfunc main( ) {}\n```\n",
	} {
		list, _, err := blocks(wrong)
		for _, b := range list {
			if err == nil {
				err = checkBlock(b)
			}
		}
		require.Error(t, err, wrong)
	}
	list, prose, err := blocks("A text.\n\n```console\n$ one\na …\n$ two\n$ three\n…\nlast\n```\n")
	require.NoError(t, err)
	require.Equal(t, "A text.\n\n", prose)
	require.NoError(t, checkBlock(list[0]))
	s := list[0].steps()
	require.Equal(t, []step{{"one", []string{"a …"}}, {"two", []string{}}, {"three", []string{"…", "last"}}}, s)
	require.Empty(t, difference(s[0].want, "a  b c\n"))
	require.NotEmpty(t, difference(s[0].want, "b c\n"))
	require.NotEmpty(t, difference(s[0].want, "a b\na c\n"))
	require.Empty(t, difference(s[1].want, ""))
	require.NotEmpty(t, difference(s[1].want, "x\n"))
	require.Empty(t, difference(s[2].want, "1\n2\nlast\n"))
	require.Empty(t, difference(s[2].want, "last\n"))
	require.NotEmpty(t, difference(s[2].want, "1\nlast one\n"))
}
