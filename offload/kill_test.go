package offload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// The tests of this file train in a process of their own: this test binary, started
// once more with childDir set.
const (
	childDir   = "SNUG_OFFLOAD_CHILD_DIR"
	childSteps = "SNUG_OFFLOAD_CHILD_STEPS"
	childLimit = "SNUG_OFFLOAD_CHILD_FILE_LIMIT" // bytes of a file
	childDelay = "SNUG_OFFLOAD_CHILD_DELAYED"    // delayed updates, if not empty
	childAsync = "SNUG_OFFLOAD_CHILD_ASYNC"      // commits in the background, if not empty
	trainLen   = 6000
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	steps, err := strconv.Atoi(os.Getenv(childSteps))
	if err != nil {
		return err
	}
	if limit := os.Getenv(childLimit); limit != "" {
		n, err := strconv.ParseUint(limit, 10, 64)
		if err != nil {
			return err
		}
		if err := limitFiles(n); err != nil {
			return err
		}
	}
	return train(dir, steps)
}

// train goes on from the last commit of the store in dir up to a step, commits after
// every other, and prints the loss of each before it is durable.
func train(dir string, steps int) error {
	s, err := Open(dir, Options{HostLimit: 10 * 4 * 512})
	if err != nil {
		return err
	}
	defer s.Close()
	opt, err := adamW(s, 512)
	if err != nil {
		return err
	}
	u, err := NewUpdater(s, opt, UpdaterOptions{PageLen: 512, Delayed: os.Getenv(childDelay) != ""})
	if err != nil {
		return err
	}
	if err := u.Add("w", trainLen, func(lo int, w []float32) error {
		copy(w, normals(trainLen, 7)[lo:])
		return nil
	}); err != nil {
		return err
	}
	if _, err := u.Resume(); err != nil {
		return err
	}
	w := make([]float32, trainLen)
	if err := u.Bind("w", snug.ViewOf(w)); err != nil {
		return err
	}
	fmt.Println("resumed", u.Steps())
	g := make([]float32, trainLen)
	var pending Commit
	begun := 0
	wait := func() error {
		if err := pending.Wait(); err != nil || begun == 0 {
			return err
		}
		fmt.Println("committed", begun)
		return nil
	}
	for u.Steps() < steps {
		loss := 0.0
		for i, x := range w {
			g[i] = x - float32(i%17)/17
			loss += float64(g[i]) * float64(g[i])
		}
		if err := u.Accumulate("w", 0, snug.ViewOf(g), 1); err != nil {
			return err
		}
		if err := u.Step(0.01, 1); err != nil {
			return err
		}
		fmt.Println("loss", u.Steps(), math.Float64bits(loss))
		if u.Steps()%2 == 1 && u.Steps() < steps {
			continue
		}
		if err := wait(); err != nil {
			return err
		}
		if os.Getenv(childAsync) != "" {
			pending, err = u.BeginCommit()
		} else {
			err = u.Commit()
		}
		if err != nil {
			return err
		}
		begun = u.Steps()
		if os.Getenv(childAsync) == "" {
			fmt.Println("committed", begun)
		}
	}
	return wait()
}

// process is a run of train in a process.
type process struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	stderr bytes.Buffer
}

func start(t testing.TB, dir string, steps int, env ...string) *process {
	p := &process{}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), append(env, childDir+"="+dir, childSteps+"="+fmt.Sprint(steps))...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.stderr
	err := p.cmd.Start()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skip("an emulator runs this test, which cannot start itself once more")
	}
	require.NoError(t, err)
	return p
}

// facts are what a process printed: the step that it began with, the loss of each step,
// and the last commit.
func (p *process) facts(t testing.TB) (resumed int, losses map[int]string, committed int) {
	resumed, losses = -1, map[int]string{}
	for scan := bufio.NewScanner(&p.out); scan.Scan(); {
		f := strings.Fields(scan.Text())
		step, err := strconv.Atoi(f[1])
		require.NoError(t, err)
		switch f[0] {
		case "resumed":
			resumed = step
		case "loss":
			losses[step] = f[2]
		case "committed":
			committed = step
		}
	}
	return resumed, losses, committed
}

// TestKilled kills a training run at random moments, 100 of them, each time opens the
// store where it was left, and goes on: every start finds the last commit, or the one
// that was being made, and all losses are those of a run that nobody disturbed.
//
//check:not race
func TestKilled(t *testing.T) {
	kills := 50
	if !kerneltest.Full() {
		kills = 6
	}
	for _, delayed := range []string{"", "yes"} {
		for _, async := range []string{"", "yes"} {
			killAgainAndAgain(t, kills/2, childDelay+"="+delayed, childAsync+"="+async)
		}
	}
}

func killAgainAndAgain(t *testing.T, kills int, env ...string) {
	const steps = 15
	whole := start(t, t.TempDir(), steps, env...)
	begin := time.Now()
	require.NoError(t, whole.cmd.Wait(), whole.stderr.String())
	took := time.Since(begin)
	_, want, _ := whole.facts(t)
	require.Len(t, want, steps)

	rng := rand.New(rand.NewPCG(5, 6))
	dir, last := t.TempDir(), 0
	for killed := 0; killed < kills; {
		p := start(t, dir, steps, env...)
		time.Sleep(time.Duration(rng.Int64N(int64(took))))
		_ = p.cmd.Process.Kill() // or it has ended
		var exit *exec.ExitError
		if err := p.cmd.Wait(); err != nil {
			require.ErrorAs(t, err, &exit)
			require.NotEqual(t, 3, exit.ExitCode(), "it was killed, not wrong: %s", p.stderr.String())
			killed++
		}
		resumed, losses, committed := p.facts(t)
		for step, loss := range losses {
			require.Equal(t, want[step], loss, "step %d", step)
		}
		if resumed >= 0 {
			require.GreaterOrEqual(t, resumed, last)
			last = max(resumed, committed)
		}
		if _, err := Verify(dir); err != nil {
			require.ErrorIs(t, err, snug.ErrConfig, "killed before the store was made")
			require.Zero(t, last)
		}
		if last == steps {
			dir, last = t.TempDir(), 0
		}
	}
}

// TestFullDisk lets files of a real file system end early, at many lengths: the error is
// clear, the last commit is whole, and the run goes on once there is room.
//
//check:not race
func TestFullDisk(t *testing.T) {
	if !filesCanBeLimited {
		return // TestFailureAtEveryCall fails every write on any system
	}
	whole := start(t, t.TempDir(), 4)
	require.NoError(t, whole.cmd.Wait(), whole.stderr.String())
	_, want, _ := whole.facts(t)
	failed := 0
	limits := []int{1, 60000, 100000, 1 << 20}
	if kerneltest.Full() {
		limits = append(limits, 0, 100, 4096, 20000, 40000, 80000, 120000, 140000)
	}
	for _, limit := range limits {
		dir := t.TempDir()
		p := start(t, dir, 4, childLimit+"="+fmt.Sprint(limit))
		err := p.cmd.Wait()
		_, losses, committed := p.facts(t)
		for step, loss := range losses {
			require.Equal(t, want[step], loss)
		}
		if err != nil {
			failed++
			require.Contains(t, p.stderr.String(), "file too large", "%d bytes", limit)
			_, err := Verify(dir)
			require.NoError(t, err)
		}
		again := start(t, dir, 4)
		require.NoError(t, again.cmd.Wait(), again.stderr.String())
		resumed, losses, _ := again.facts(t)
		require.Equal(t, committed, resumed)
		for step, loss := range losses {
			require.Equal(t, want[step], loss)
		}
	}
	require.Greater(t, failed, len(limits)/2)
	require.Less(t, failed, len(limits))
}
