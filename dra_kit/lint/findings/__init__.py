"""What a check finds: the rules, findings at places of files, and what people and programs are shown of them."""
