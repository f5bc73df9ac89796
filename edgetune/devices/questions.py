"""What a device is asked by ``probe.py``: a script for any POSIX shell."""

# No command in it is needed: what is missing leaves its section empty.
QUESTIONS = r"""
exec 2>/dev/null
section() { printf '\n==%s==\n' "$1"; }
section system; uname -s; uname -m; uname -r
section cpuinfo; cat /proc/cpuinfo
section auxv; od -An -v -tx1 /proc/self/auxv
section memory; head -n 3 /proc/meminfo
section allowed; cat /proc/self/status | grep Cpus_allowed_list
section libc; getconf GNU_LIBC_VERSION || ldd --version 2>&1 | head -n 2; ls /system/lib*/libc.so
section cpus
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  printf '%s' "${cpu##*/cpu}"
  for file in cpufreq/cpuinfo_max_freq cpufreq/scaling_governor cpu_capacity topology/thread_siblings_list; do
    value=; read -r value < "$cpu/$file"; printf '|%s' "$value"
  done
  printf '|'
  for cache in "$cpu"/cache/index*; do
    read -r level < "$cache/level" && read -r type < "$cache/type" && read -r size < "$cache/size" &&
      printf ' %s:%s:%s' "$level" "$type" "$size"
  done
  printf '\n'
done
section board; tr -d '\000' < /proc/device-tree/model
section android; getprop ro.product.model; getprop ro.build.version.sdk
getprop ro.soc.manufacturer; getprop ro.soc.model
section gpu; nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader
section tree; tr '\000' '\n' < /proc/device-tree/compatible
section othergpu; cat /sys/class/kgsl/kgsl-3d0/gpu_model || cat /sys/class/misc/mali0/device/gpuinfo
section class; od -An -v -tx1 -N5 /proc/self/exe
"""
