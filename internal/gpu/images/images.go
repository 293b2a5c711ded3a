// Package images knows which modules of GPU kernels the repository has, what
// their compiled images are made from, and whether an image is still what its
// sources give. The program in the folder build makes the images; build.sh runs
// it.
package images

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/gpu"
)

// Include is the folder of the kernel dialect's headers, Pins the file that
// names the compilers and their hashes.
const (
	Include = "internal/gpu/include"
	Pins    = "internal/gpu/images/requirements.txt"
)

// Archs are the architectures that an image has machine code for: 100 serves 10.0 and 10.3,
// 120 serves 12.0 and 12.1. All of it is made of one PTX, for the first, which is in the image
// too and which other devices compile when they load it. A module whose name ends
// in _sm90a is for that one alone, which no other runs, and has no PTX.
var Archs = []string{"80", "86", "90", "100", "120"}

const alone = "90a"

// Options are the compiler's options, and AssemblerOptions the assembler's.
var (
	Options = []string{
		"--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false",
		"-D__NV_TARGET_H", // leaves out a header of NVRTC's own, whose constants every image would carry
	}
	AssemblerOptions = []string{"-O3"}
)

// Module is the path of a module of kernels without its ending, from the root
// of the repository: "amp/kernels/amp".
type Module string

// Find returns the modules, a .cu file each: first the modules of packages at the top,
// then of packages one folder below.
func Find(root string) ([]Module, error) {
	return find(root, ".cu")
}

// Orphans returns the paths of images that have no source.
func Orphans(root string) ([]string, error) {
	images, err := find(root, ".image")
	if err != nil {
		return nil, err
	}
	modules, err := Find(root)
	if err != nil {
		return nil, err
	}
	var has []string
	for _, m := range modules {
		has = append(has, m.Image())
	}
	for _, m := range AMD(modules) {
		has = append(has, m.Image())
	}
	var orphans []string
	for _, m := range images {
		if !slices.Contains(has, m.Image()) {
			orphans = append(orphans, m.Image())
		}
	}
	return orphans, nil
}

func find(root, ending string) ([]Module, error) {
	var files []string
	for _, folder := range []string{"[^.]*", "[^.]*/*"} { // .build may hold copies
		found, err := filepath.Glob(filepath.Join(root, folder, "kernels", "*"+ending))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	var modules []Module
	for _, file := range files {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		modules = append(modules, Module(strings.TrimSuffix(filepath.ToSlash(rel), ending)))
	}
	return modules, nil
}

// Name returns the module's name: "amp".
func (m Module) Name() string { return path.Base(string(m)) }

// Archs returns the architectures that the module's image has machine code for.
func (m Module) Archs() []string {
	if strings.HasSuffix(m.Name(), "_sm"+alone) {
		return []string{alone}
	}
	return Archs
}

// Portable says whether the image has PTX too.
func (m Module) Portable() bool { return m.Archs()[0] != alone }

// Entry returns the path of the file that the compiler is given.
func (m Module) Entry() string { return string(m) + ".cu" }

// Image returns the path of the compiled kernels.
func (m Module) Image() string { return string(m) + ".image" }

// Pack returns the image of some codes. If the image that is there has these codes it is that
// one, because releases of xz may compress in other ways.
func (m Module) Pack(root string, codes []gpu.Code) ([]byte, error) {
	return pack(filepath.Join(root, m.Image()), codes, compress)
}

// compress returns a stream by the program xz. Instructions of NVIDIA have 16 bytes, those of AMD 4 or 8.
func compress(c gpu.Code) ([]byte, error) {
	lc, lp, pb := 0, 4, 4
	switch {
	case c.PTX:
		lc, lp, pb = 3, 0, 0
	case c.AMD != "":
		lp, pb = 2, 2
	}
	xz := exec.Command("xz", "--stdout", "--format=raw", fmt.Sprintf("--lzma1=preset=9e,lc=%d,lp=%d,pb=%d", lc, lp, pb))
	xz.Stdin = bytes.NewReader(c.Data)
	out, err := xz.Output()
	return append([]byte{byte((pb*5+lp)*9 + lc)}, out...), err
}

func pack(path string, codes []gpu.Code, compress func(gpu.Code) ([]byte, error)) ([]byte, error) {
	if image, err := os.ReadFile(path); err == nil {
		if there, err := gpu.UnpackAll(image); err == nil && reflect.DeepEqual(there, codes) {
			return image, nil
		}
	}
	return gpu.PackImage(codes, compress)
}

// Sum returns the path of the hashes of what the image was made from.
func (m Module) Sum() string { return string(m) + ".sum" }

var includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// Sources returns the texts of the entry file and of all headers that it
// reaches, by their paths. Headers named emu_ and hip_ belong to other
// compilers.
func (m Module) Sources(root string) (map[string]string, error) {
	return m.sources(root, "emu_", "hip_")
}

// sources leaves out headers whose names start with one of two words.
func (m Module) sources(root, other1, other2 string) (map[string]string, error) {
	texts := map[string]string{}
	var add func(file string) error
	add = func(file string) error {
		if _, seen := texts[file]; seen {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		texts[file] = string(text)
		for _, match := range includeLine.FindAllStringSubmatch(string(text), -1) {
			name := match[1]
			if strings.HasPrefix(name, other1) || strings.HasPrefix(name, other2) {
				continue
			}
			header := path.Join(path.Dir(string(m)), name)
			if _, err := os.Stat(filepath.Join(root, header)); err != nil {
				header = path.Join(Include, name)
			}
			if err := add(header); err != nil {
				return fmt.Errorf("%s includes %s: %w", file, name, err)
			}
		}
		return nil
	}
	return texts, add(m.Entry())
}

// SumOf returns what the module's sum file says when the image is made from the
// sources that are there: the options, and the hashes of the sources, the pinned
// compilers and the image.
func (m Module) SumOf(root string, image []byte) (string, error) {
	sources, err := m.Sources(root)
	if err != nil {
		return "", err
	}
	pins, err := os.ReadFile(filepath.Join(root, Pins))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# What %s was made from. internal/gpu/images/build.sh writes this file.\n", m.Image())
	fmt.Fprintf(&b, "# compiler: %s\n# assembler: %s\n# sm_%s", strings.Join(Options, " "),
		strings.Join(AssemblerOptions, " "), strings.Join(m.Archs(), " sm_"))
	if m.Portable() {
		fmt.Fprintf(&b, ", PTX for compute_%s", Archs[0])
	}
	b.WriteString("\n")
	writeSums(&b, sources)
	writeSum(&b, pins, Pins)
	writeSum(&b, image, m.Image())
	return b.String(), nil
}

func writeSum(b *strings.Builder, text []byte, file string) {
	fmt.Fprintf(b, "%x  %s\n", sha256.Sum256(text), file)
}

func writeSums(b *strings.Builder, sources map[string]string) {
	for _, file := range slices.Sorted(maps.Keys(sources)) {
		writeSum(b, []byte(sources[file]), file)
	}
}

// Check returns an error that says how the image differs from what the sources
// give, as far as hashes tell.
func (m Module) Check(root string) error { return check(root, m) }

// compiled is a module's kernels in an image, with its sum file.
type compiled interface {
	Entry() string
	Image() string
	Sum() string
	SumOf(root string, image []byte) (string, error)
}

func check(root string, m compiled) error {
	image, err := os.ReadFile(filepath.Join(root, m.Image()))
	if err != nil {
		return fmt.Errorf("%s is not compiled: %w", m.Entry(), err)
	}
	want, err := m.SumOf(root, image)
	if err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(root, m.Sum()))
	if err != nil {
		return err
	}
	changed := difference(string(got), want)
	if len(changed) > 0 {
		return fmt.Errorf("%s was made from other files or options:\n%s", m.Image(), strings.Join(changed, "\n"))
	}
	return nil
}

// difference returns the lines of got that want lacks, with "-", and the lines
// of want that got lacks, with "+".
func difference(got, want string) []string {
	var lines []string
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for _, line := range gotLines {
		if !slices.Contains(wantLines, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range wantLines {
		if !slices.Contains(gotLines, line) {
			lines = append(lines, "+ "+line)
		}
	}
	return lines
}
