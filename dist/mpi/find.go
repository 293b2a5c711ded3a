package mpi

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// LibraryVariable is the environment variable that names the MPI library.
const LibraryVariable = "SNUG_MPI"

// launcherVariables are set by launchers of Open MPI, of MPICH and of Intel MPI, and by Slurm's srun with --mpi.
var launcherVariables = []string{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD"}

// Launched reports whether a launcher of MPI has started this process.
func Launched() bool {
	return slices.ContainsFunc(launcherVariables, func(name string) bool { return os.Getenv(name) != "" })
}

// launchedSize returns the number of ranks that the launcher says, or 0.
func launchedSize() int {
	for _, name := range []string{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
	}
	return 0
}

// libraryNames returns the names of the libraries of MPI. Those that fit the launcher come first.
func libraryNames() []string {
	if runtime.GOOS == "darwin" {
		return []string{"libmpi_abi.1.dylib", "libmpi_abi.0.dylib", "libmpi.40.dylib", "libmpi.12.dylib"}
	}
	mpich, open := []string{"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12"}, []string{"libmpi.so.40"}
	if os.Getenv("OMPI_COMM_WORLD_SIZE") != "" {
		return slices.Concat(open, mpich)
	}
	return slices.Concat(mpich, open)
}

// candidates returns what to give to dlopen, in order.
func candidates() []string {
	if name := os.Getenv(LibraryVariable); name != "" {
		return []string{name}
	}
	var list []string
	for _, dir := range launcherFolders() {
		for _, name := range libraryNames() {
			for _, lib := range []string{"lib", "lib64"} {
				path := filepath.Join(filepath.Dir(dir), lib, name)
				if _, err := os.Stat(path); err == nil && !slices.Contains(list, path) {
					list = append(list, path)
				}
			}
		}
	}
	return append(list, libraryNames()...)
}

// launcherFolders returns the folders of the launchers among the ancestors of this process, and of the mpiexec of PATH.
func launcherFolders() (dirs []string) {
	for pid, depth := os.Getppid(), 0; pid > 1 && depth < 16; depth++ {
		if exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe")); err == nil && isLauncher(filepath.Base(exe)) {
			dirs = append(dirs, filepath.Dir(exe))
		}
		pid = parent(pid)
	}
	for _, name := range []string{"mpiexec", "mpirun"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		dirs = append(dirs, filepath.Dir(path))
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return dirs
}

// isLauncher reports whether a program is one that starts ranks.
func isLauncher(name string) bool {
	return strings.HasPrefix(name, "mpiexec") || strings.HasPrefix(name, "mpirun") ||
		slices.Contains([]string{"hydra_pmi_proxy", "hydra_bstrap_proxy", "prted", "prterun", "prte", "orted", "orterun"}, name)
}

// parent returns the parent of a process, or 0 where the system does not tell.
func parent(pid int) int {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}
