package cpu

const sysGetcpu = 168
