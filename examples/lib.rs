//! Services to copy and to watch: see the files beside this one.
