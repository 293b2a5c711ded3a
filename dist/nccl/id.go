package nccl

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/files"
)

// exchange returns the unique id of rank 0 to every rank. failed is this rank's error so far, which it tells the others if
// it can.
func (o *Options) exchange(lib *library, failed error) (id uniqueID, err error) {
	if o.Rank == 0 && failed == nil {
		failed = lib.check("ncclGetUniqueId", lib.getUniqueID(&id))
	}
	switch {
	case o.Size > 1 && o.Exchange != nil:
		return id, o.broadcast(&id, failed)
	case failed != nil || o.Size == 1:
		return id, failed
	case o.Rank == 0:
		return id, o.write(&id)
	}
	return id, o.read(&id)
}

// broadcast sends the id by the Exchange. All ranks take part, also those that have failed, so that none waits for them.
func (o *Options) broadcast(id *uniqueID, failed error) error {
	const head = 16 // whether there is an id, and the number of ranks
	message := make([]byte, head+len(id.Bytes))
	if failed == nil {
		binary.LittleEndian.PutUint64(message, 1)
	}
	binary.LittleEndian.PutUint64(message[8:], uint64(o.Size))
	copy(message[head:], id.Bytes[:])
	err := o.Exchange.Broadcast(0, snug.SliceView(message))
	if err != nil {
		return errors.Join(failed, fmt.Errorf("the unique id: %w", err))
	}
	if size := binary.LittleEndian.Uint64(message[8:]); failed == nil && size != uint64(o.Size) {
		failed = fmt.Errorf("rank 0 has %d ranks, this rank has %d: %w", size, o.Size, snug.ErrConfig)
	}
	if failed == nil && binary.LittleEndian.Uint64(message) == 0 {
		failed = fmt.Errorf("rank 0 has an error and made no unique id: %w", snug.ErrConfig)
	}
	copy(id.Bytes[:], message[head:])
	r, ok := o.Exchange.(accum.Reducer)
	if !ok {
		return failed
	}
	count := []float64{0}
	if failed != nil {
		count[0] = 1
	}
	err = r.Sum(count)
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("the unique id: %w", err)
	case count[0] > 0:
		return fmt.Errorf("%.0f other ranks have an error and do not join: %w", count[0], snug.ErrConfig)
	}
	return nil
}

// note is the file that holds the unique id.
type note struct {
	Kind    string // noteKind
	Run     string
	Ranks   int
	Written time.Time
	ID      string // in hexadecimal digits
}

const noteKind = "snug: NCCL's unique id"

// write puts the id into the file, as a whole.
func (o *Options) write(id *uniqueID) error {
	text, err := json.Marshal(note{noteKind, o.Run, o.Size, time.Now(), hex.EncodeToString(id.Bytes[:])})
	if err != nil {
		return err
	}
	return files.Replace(o.File, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// read waits for the file of this run.
func (o *Options) read(id *uniqueID) error {
	for began := time.Now(); ; time.Sleep(min(20*time.Millisecond, o.Timeout/10)) {
		err := o.take(id)
		if err == nil || errors.Is(err, snug.ErrConfig) {
			return err
		}
		if time.Since(began) > o.Timeout {
			return late(fmt.Sprintf("waited %s for the unique id of run %q: %v", o.Timeout, o.Run, err))
		}
	}
}

// maxNote is more bytes than a note has whose Run is a name.
const maxNote = 1 << 20

// look returns what the file holds. The error wraps snug.ErrConfig if it is no regular file, which could block.
func (o *Options) look() (n note, err error) {
	f, _, err := files.Open(o.File)
	if err != nil {
		return n, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err := errors.Join(err, f.Close()); err != nil {
		return n, err
	}
	if err := json.Unmarshal(text, &n); err != nil || n.Kind != noteKind {
		return n, fmt.Errorf("%s holds no unique id", o.File)
	}
	return n, nil
}

// take reads the id, if the file is of this run.
func (o *Options) take(id *uniqueID) error {
	n, err := o.look()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rank 0 has not written %s", o.File)
	}
	if err != nil {
		return err
	}
	if n.Run != o.Run {
		return fmt.Errorf("%s is of run %q", o.File, n.Run)
	}
	if age := time.Since(n.Written); age > o.Timeout {
		return fmt.Errorf("%s was written %s ago", o.File, age.Round(time.Second))
	}
	bytes, err := hex.DecodeString(n.ID)
	if err != nil || len(bytes) != len(id.Bytes) {
		return fmt.Errorf("%s holds no unique id", o.File)
	}
	if n.Ranks != o.Size {
		return fmt.Errorf("%s is for %d ranks, this rank has %d: %w", o.File, n.Ranks, o.Size, snug.ErrConfig)
	}
	copy(id.Bytes[:], bytes)
	return nil
}

// forget removes the file, which all ranks have read, unless another run has written it since. A file that stays is taken
// by no other run.
func (o *Options) forget(id *uniqueID) {
	if o.Rank != 0 || o.Size == 1 || o.File == "" {
		return
	}
	if n, err := o.look(); err == nil && n.ID == hex.EncodeToString(id.Bytes[:]) {
		_ = os.Remove(o.File)
	}
}
