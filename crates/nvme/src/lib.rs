//! Wire formats of NVMe base, NVMe over Fabrics and the NVMe/TCP transport; no I/O.
