package files

import "os"

// Snapshot is [OS] for a folder of a published model, which is only read. Its Open follows links to regular files, as
// [Open] does: the cache of huggingface_hub consists of links, and people share large weights by links. It also reads
// the files of other users, since contents are checked and never trusted.
func Snapshot(dir string) Dir { return snapshotDir{osDir(dir)} }

type snapshotDir struct{ osDir }

func (d snapshotDir) Open(name string, flag int) (File, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	if flag != os.O_RDONLY {
		return d.osDir.Open(name, flag)
	}
	f, _, err := Open(path)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}
