package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Snapshot is [OS] for a folder of a published model, which is only read. Its Open also
// follows one kind of link: in the cache of huggingface_hub every file of
// snapshots/REVISION is a link to ../../blobs/NAME. Other links are errors as before.
func Snapshot(dir string) Dir { return snapshotDir{osDir(dir)} }

type snapshotDir struct{ osDir }

func (d snapshotDir) Open(name string, flag int) (File, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 && flag == os.O_RDONLY {
		if blobs, blob, ok := d.blob(path); ok {
			return blobs.Open(blob, flag)
		}
	}
	return d.osDir.Open(name, flag)
}

// blob returns the folder and the name of the file that a link of the cache leads to.
func (d snapshotDir) blob(path string) (blobs osDir, name string, ok bool) {
	to, err := os.Readlink(path)
	if err != nil {
		return "", "", false
	}
	name, ok = strings.CutPrefix(filepath.ToSlash(to), "../../blobs/")
	if !ok || strings.ContainsAny(name, `/\`) {
		return "", "", false
	}
	whole, err := filepath.EvalSymlinks(string(d.osDir)) // where ".." leads from
	if err != nil || filepath.Base(filepath.Dir(whole)) != "snapshots" {
		return "", "", false
	}
	return osDir(filepath.Join(whole, "..", "..", "blobs")), name, true
}
