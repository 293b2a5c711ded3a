package cpu

const sysGetcpu = 309
