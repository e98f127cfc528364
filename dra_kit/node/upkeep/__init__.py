"""What is looked after between the kubelet's calls: files, orphans, changed devices, leftovers."""
