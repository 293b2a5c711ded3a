//go:build (cuda || hip) && linux && (amd64 || arm64)

package nccl

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// buildStub compiles testdata/stub.c and returns its path.
func buildStub(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "" {
		t.Skip("no C compiler, gcc, to build the stub library with")
	}
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "libnccl.so.2")
	out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", path, filepath.Join("testdata", "stub.c")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// TestCallingConvention: every function gets its arguments as C declares them, and its result comes back.
func TestCallingConvention(t *testing.T) {
	path := buildStub(t)
	l, err := openLibrary(path, "cuda")
	require.NoError(t, err)
	require.Equal(t, "2.27.3", l.version())
	at, err := purego.Dlopen(path, purego.RTLD_NOW)
	require.NoError(t, err)
	var name func() string
	var count, id func(i int32) int32
	var arg func(i int32) uint64
	var answer func(r int32)
	for symbol, fn := range map[string]any{"stub_name": &name, "stub_count": &count, "stub_arg": &arg, "stub_answer": &answer, "stub_id": &id} {
		t.Run(symbol, func(t *testing.T) {
			purego.RegisterLibFunc(fn, at, symbol)
		})
	}
	recorded := func(call string, args ...uint64) {
		t.Helper()
		require.Equal(t, call, name())
		require.EqualValues(t, len(args), count(0))
		for i, want := range args {
			if want != anything {
				require.Equal(t, want, arg(int32(i)), "%s: argument %d", call, i)
			}
		}
	}
	sameID := func() {
		t.Helper()
		for i := range int32(128) {
			require.EqualValues(t, int8(i+1), id(i))
		}
	}
	const minus = 1<<64 - 2
	answer(3)
	var key uniqueID
	require.EqualValues(t, 3, l.getUniqueID(&key))
	require.EqualValues(t, 128, key.Bytes[127])
	comm := new(uintptr)
	require.EqualValues(t, 3, l.initRank(comm, -2, key, 7))
	recorded("ncclCommInitRank", anything, minus, 7)
	require.EqualValues(t, 0x1234, *comm)
	sameID()
	*comm = 0
	require.EqualValues(t, 3, l.initScalable(comm, 5, -2, 1, &key, 0))
	recorded("ncclCommInitRankScalable", anything, 5, minus, 1, anything, 0)
	require.EqualValues(t, 0x1234, *comm)
	sameID()
	require.EqualValues(t, 3, l.destroy(1<<40))
	recorded("ncclCommDestroy", 1<<40)
	require.EqualValues(t, 3, l.abort(1<<40))
	recorded("ncclCommAbort", 1<<40)
	r := new(result)
	require.EqualValues(t, 3, l.asyncError(1<<40, r))
	recorded("ncclCommGetAsyncError", 1<<40, anything)
	require.EqualValues(t, 6, *r)
	require.EqualValues(t, 3, l.groupStart())
	recorded("ncclGroupStart")
	require.EqualValues(t, 3, l.groupEnd())
	recorded("ncclGroupEnd")
	require.EqualValues(t, 3, l.send(1<<50, 1<<41, 1, -2, 1<<42, 1<<43))
	recorded("ncclSend", 1<<50, 1<<41, 1, minus, 1<<42, 1<<43)
	require.EqualValues(t, 3, l.receive(1<<50, 1<<41, 1, 3, 1<<42, 1<<43))
	recorded("ncclRecv", 1<<50, 1<<41, 1, 3, 1<<42, 1<<43)
	require.EqualValues(t, 3, l.allGather(1<<50, 1<<51, 1<<41, 1, 1<<42, 1<<43))
	recorded("ncclAllGather", 1<<50, 1<<51, 1<<41, 1, 1<<42, 1<<43)
	require.EqualValues(t, 3, l.broadcast(1<<50, 1<<51, 1<<41, 1, 4, 1<<42, 1<<43))
	recorded("ncclBroadcast", 1<<50, 1<<51, 1<<41, 1, 4, 1<<42, 1<<43)
	require.EqualError(t, l.check("ncclSend", 3), "ncclSend: internal error (3): the last error")
	kerneltest.NoAllocs(t, func() {
		l.send(1, 2, 1, 3, 4, 5)
		l.asyncError(1, r)
		l.groupEnd()
	})
}

// anything is an argument that is not compared.
const anything = 0xabcdef123

// TestOpenLibrary: what is missing is said in one line.
func TestOpenLibrary(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.so")
	_, err := openLibrary(none, "cuda")
	require.ErrorIs(t, err, snug.ErrNotBuilt)
	require.ErrorContains(t, err, "none.so")
	t.Setenv(LibraryVariable, none)
	_, err = openLibrary("", "cuda")
	require.ErrorContains(t, err, "none.so")
	_, err = openLibrary("libc.so.6", "cuda")
	require.ErrorIs(t, err, snug.ErrNotBuilt)
	require.ErrorContains(t, err, "libc.so.6 is not NCCL")
	t.Setenv(LibraryVariable, "")
	_, err = openLibrary("", "hip")
	if err != nil {
		require.ErrorIs(t, err, snug.ErrNotBuilt)
		require.ErrorContains(t, err, "looked for librccl.so.1, librccl.so where the system looks; SNUG_NCCL can name one")
	}
	_, err = Open(Options{Size: 1, Device: snug.CPU()})
	require.ErrorIs(t, err, snug.ErrDevice)
}
