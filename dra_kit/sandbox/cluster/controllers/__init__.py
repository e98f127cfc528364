"""The controllers of a control plane that DRA needs: pure rules, and around each a loop that writes."""
